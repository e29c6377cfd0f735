"""What is wrong with a checkpoint is said by name; a hub name works; the shipped one is what the maker makes."""

import functools
import hashlib
import http.server
import json
import shutil
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints import make_tiny
from engine.local import checkpoint
from engine.local.errors import CheckpointError
from engine.local.model import Model
from tests.unit.engine.harness import TINY

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(TINY, copy)
    return copy


def change(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_shipped_checkpoint_is_what_the_maker_makes(tmp_path):
    make_tiny.make(tmp_path / "again")
    for file in sorted(TINY.iterdir()):
        if file.suffix != ".safetensors":
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name
    again, shipped = (load_file(d / "model.safetensors") for d in (tmp_path / "again", TINY))
    assert again.keys() == shipped.keys()
    for name, tensor in shipped.items():
        torch.testing.assert_close(again[name], tensor)
    assert sum(f.stat().st_size for f in TINY.iterdir()) < 8_000_000


def test_the_kernel_checkpoint_has_the_real_block_geometry(tmp_path):
    make_tiny.make(tmp_path, "tiny-128")
    m = Model(tmp_path)
    assert (m.msa.block_size, m.msa.topk_blocks, m.kv_shape.head_dim, m.kv_shape.kv_heads) == (128, 16, 128, 1)
    assert m.text_config.num_hidden_layers == 3


def test_a_missing_tensor_is_named(folder):
    name = "language_model.model.layers.2.self_attn.index_k_norm.weight"
    change(folder, lambda w: w.pop(name))
    with pytest.raises(CheckpointError, match=r"missing: .*layers\.2\.self_attn\.indexer\.k_norm\.weight"):
        checkpoint.load(folder, "float32", CPU)


def test_an_unexpected_tensor_is_named(folder):
    change(folder, lambda w: w.update({"language_model.model.layers.0.self_attn.gate.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"unexpected: .*layers\.0\.self_attn\.gate\.weight"):
        checkpoint.load(folder, "float32", CPU)


def test_a_tensor_of_the_wrong_shape_is_named(folder):
    name = "language_model.model.norm.weight"
    change(folder, lambda w: w.update({name: torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        checkpoint.load(folder, "float32", CPU)


def test_multi_token_prediction_tensors_are_ignored(folder):
    change(folder, lambda w: w.update({"mtp.0.weight": torch.zeros(2)}))
    checkpoint.load(folder, "float32", CPU)


@pytest.mark.parametrize("name", ["no/such/folder", "nothing", "../up"])
def test_neither_folder_nor_hub_name(name):
    with pytest.raises(CheckpointError, match="neither a folder nor a hub name"):
        checkpoint.locate(name)


@pytest.mark.parametrize(
    ("device", "why"), [("cuda:99", "torch sees"), ("meta", "not supported"), ("abacus", "unknown")]
)
def test_a_device_that_is_not_there(device, why):
    with pytest.raises(CheckpointError, match=why):
        checkpoint.pick_device(device)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        checkpoint.locate(tmp_path)


def test_another_kind_of_model(folder):
    config = {"model_type": "llama", "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="llama"):
        checkpoint.load(folder, "float32", CPU)


def test_the_router_and_nothing_else_stays_in_float32():
    m = Model(TINY, "bfloat16")
    wide = {
        n.partition("layers.")[2].partition(".")[2] for n, p in m.net.state_dict().items() if p.dtype == torch.float32
    }
    assert m.dtype == torch.bfloat16
    assert wide == {"mlp.gate.weight", "mlp.gate.e_score_correction_bias"}


def test_a_released_style_configuration_gives_the_same_model(folder):
    """Flat rope fields, sparse_attention_config and moe_layer_freq, as the published config.json has them."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    for name in ("layer_types", "mlp_layer_types", "rope_parameters", "index_n_heads", "index_head_dim",
                 "index_block_size", "index_topk_blocks", "index_local_blocks"):  # fmt: skip
        text.pop(name)
    text |= {
        "model_type": "minimax_m3",
        "rope_theta": 5000000,
        "partial_rotary_factor": 0.5,
        "hidden_act": "swigluoai",
        "moe_layer_freq": [0, 1, 1, 1],
        "sparse_attention_config": {
            "sparse_index_dim": 32, "sparse_num_index_heads": 2, "sparse_topk_blocks": 4, "sparse_block_size": 16,
            "sparse_init_block": 0, "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 1, 1],
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    m = Model(folder)
    assert (m.msa.block_size, m.msa.topk_blocks, m.msa.local_blocks) == (16, 4, 1)
    assert m.kv_shape.index_dims == (0, 32, 32, 32)
    assert m.net.model.language_model.rotary_emb.inv_freq.numel() == 8


# ------------------------------------------------------------------------------------------------ hub
class FakeHub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's HTTP API as a snapshot needs: the file list of a revision, and the files."""

    sha = "f" * 40

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path.startswith("/api/models/acme/tiny/tree/"):
            tree = [
                {
                    "type": "file",
                    "path": f.name,
                    "size": f.stat().st_size,
                    "oid": hashlib.sha1(f.read_bytes()).hexdigest(),
                }
                for f in sorted(TINY.iterdir())
            ]
            return self.answer(json.dumps(tree).encode(), {"content-type": "application/json"})
        if self.path.startswith("/api/models/acme/tiny"):
            files = [{"rfilename": f.name} for f in sorted(TINY.iterdir())]
            body = json.dumps({"id": "acme/tiny", "sha": self.sha, "siblings": files}).encode()
            return self.answer(body, {"content-type": "application/json"})
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/acme/tiny/resolve/") and (TINY / name).is_file():
            body = (TINY / name).read_bytes()
            tag = hashlib.sha256(body).hexdigest()
            return self.answer(body, {"x-repo-commit": self.sha, "etag": f'"{tag}"'})
        self.send_error(404)
        return None

    def answer(self, body, headers):
        self.send_response(200)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.05))
        thread.start()
        import huggingface_hub.constants

        url = f"http://127.0.0.1:{server.server_port}"
        files = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield url
        server.shutdown()
        thread.join()


def test_a_hub_name_is_downloaded(hub):
    folder = checkpoint.locate("acme/tiny")
    assert (folder / "model.safetensors").read_bytes() == (TINY / "model.safetensors").read_bytes()
    assert (folder / "chat_template.jinja").is_file()
    checkpoint.load(folder, "float32", CPU)


def test_an_unknown_hub_name_is_an_error_that_names_it(hub):
    with pytest.raises(CheckpointError, match="acme/nothing"):
        checkpoint.locate("acme/nothing")
