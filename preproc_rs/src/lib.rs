use pyo3::prelude::*;

#[pymodule]
fn preproc_rs(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
