"""A scripted engine: the contract's HTTP surface without a model. Command line: `python -m tests.mock_engine --help`.

    async with MockEngine(model_path, script=[{"pieces": ["Hello", " world", [200020]]}]) as engine:
        ...  # talk to engine.url
        requests = engine.log("request")

script.py       the format of the script and which answer a request gets
checkpoint.py   tokenizer and ids of a model folder
answering.py    from an answer and a request to a list of steps (pure)
prefix_cache.py page-granular cached_tokens, and the store of rows
recorder.py     GET /log
streaming.py    writes steps to a connection, with the faults
contract.py     POST /catalejo/v1/generate;  stock.py  POST /generate as SGLang answers it
server.py       routes, bearer token, MockEngine
"""

from tests.mock_engine.server import MockEngine
from tests.mock_engine.state import Options

__all__ = ["MockEngine", "Options"]
