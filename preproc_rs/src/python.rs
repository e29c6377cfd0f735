//! The Python edge: immutable bytes in, the GIL released, pure Rust, errors with a stable code out.

use crate::cancel::CancelToken;
use crate::courtesy;
use crate::decode::FORMATS;
use crate::error::{Code, Error};
use crate::hash;
use crate::image::{self, ImageOptions};
use crate::limits::*;
use crate::long_values::{self, Kind};
use crate::memory::Buffer;
use crate::patchify::Rows;
use crate::resize::Form;
use crate::size::{check_cap, SizeRule};
#[cfg(feature = "video")]
use crate::video::{self, VideoOptions};
use crate::{data_url as url, sniff as magic};
use pyo3::create_exception;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use std::ffi::{c_int, c_void};

create_exception!(
    preproc_rs,
    PreprocError,
    PyValueError,
    "A file or option that was refused: `.code` is stable, `.message` is for the person who sent it."
);

fn raise(py: Python<'_>, error: Error) -> PyErr {
    let exception = PreprocError::new_err(error.message.clone());
    let value = exception.value(py);
    match value.setattr("code", error.code.as_str()).and_then(|()| value.setattr("message", error.message)) {
        Ok(()) => exception,
        Err(failed) => failed,
    }
}

fn bad_option(py: Python<'_>, message: String) -> PyErr {
    raise(py, Error::new(Code::BadOption, message))
}

/// Set it from any thread, and the work that got it stops with code "cancelled".
#[pyclass(name = "CancelToken", module = "preproc_rs", frozen)]
#[derive(Default)]
struct PyCancelToken(CancelToken);

#[pymethods]
impl PyCancelToken {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Memory of patch rows, read-only (the hash names its content); back to the pool when the last view is gone.
#[pyclass(module = "preproc_rs", frozen)]
struct RowBuffer(Buffer);

#[pymethods]
impl RowBuffer {
    // SAFETY: the view holds a reference to `slf`, which is frozen and owns the bytes; the view is read-only.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes: &[u8] = &slf.get().0;
        let (pointer, length) = (bytes.as_ptr() as *mut c_void, bytes.len() as isize);
        // SAFETY: `view` is what the interpreter gave; PyBuffer_FillInfo refuses writable requests itself.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer, length, 1, flags) };
        if status != 0 {
            return Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("the rows are read-only")));
        }
        Ok(())
    }
}

/// One prepared image or video; see preproc_rs.pyi.
#[pyclass(module = "preproc_rs", frozen, get_all)]
struct Prepared {
    kind: &'static str,
    format: &'static str,
    width: u32,
    height: u32,
    resized_hw: (usize, usize),
    grid_thw: (usize, usize, usize),
    tokens: usize,
    rows: &'static str,
    t_dup: u8,
    patches: Py<PyAny>,
    source_key: String,
    hash: String,
    timestamps: Option<Py<PyTuple>>,
    frame_indices: Option<Py<PyTuple>>,
    ms: Py<PyDict>,
}

fn to_python(py: Python<'_>, done: image::Prepared) -> PyResult<Prepared> {
    let ms = PyDict::new(py);
    for (step, value) in &done.ms {
        ms.set_item(step, value)?;
    }
    let timestamps = match &done.timestamps {
        Some(seconds) => Some(PyTuple::new(py, seconds)?.unbind()),
        None => None,
    };
    let frame_indices = match &done.frame_indices {
        Some(numbers) => Some(PyTuple::new(py, numbers)?.unbind()),
        None => None,
    };
    let tokens = done.tokens();
    let [t, h, w] = done.grid;
    let buffer = Py::new(py, RowBuffer(done.data))?;
    let dtype = match done.rows {
        Rows::U8 => "u1",
        Rows::F32 => "<f4",
    };
    let flat = py.import("numpy")?.call_method1("frombuffer", (buffer, dtype))?;
    let patches = flat.call_method1("reshape", ((t * h * w, done.row_values),))?.unbind();
    Ok(Prepared {
        kind: done.kind,
        format: done.format,
        width: done.width,
        height: done.height,
        resized_hw: done.resized_hw,
        grid_thw: (t, h, w),
        tokens,
        rows: done.rows.as_str(),
        t_dup: done.t_dup,
        patches,
        source_key: done.source_key,
        hash: done.hash,
        timestamps,
        frame_indices,
        ms: ms.unbind(),
    })
}

fn parse_rows(py: Python<'_>, rows: &str) -> PyResult<Rows> {
    match rows {
        "u8" => Ok(Rows::U8),
        "f32" => Ok(Rows::F32),
        other => Err(bad_option(py, format!("rows is {other:?}; it must be \"u8\" or \"f32\""))),
    }
}

fn parse_form(py: Python<'_>, name: Option<&str>) -> PyResult<Form> {
    let Some(name) = name else { return Ok(Form::best()) };
    let here = || Form::available().iter().map(|form| form.as_str()).collect::<Vec<_>>().join(", ");
    Form::named(name).ok_or_else(|| bad_option(py, format!("resize_form is {name:?}; this CPU has {}", here())))
}

fn parse_rule(py: Python<'_>, rule: &str, cap: Option<u32>, area_max: u64) -> PyResult<SizeRule> {
    match (rule, cap) {
        ("long_side", cap) => {
            let cap = check_cap(cap.unwrap_or(LONG_SIDE_DEFAULT)).map_err(|e| raise(py, e))?;
            Ok(SizeRule::LongSide { cap })
        }
        ("area", None) => Ok(SizeRule::Area { max: area_max }),
        ("area", Some(_)) => {
            Err(bad_option(py, "max_long_side_pixel belongs to size_rule \"long_side\", not \"area\"".into()))
        }
        (other, _) => Err(bad_option(py, format!("size_rule is {other:?}; it must be \"area\" or \"long_side\""))),
    }
}

#[pyfunction]
#[pyo3(signature = (data, *, size_rule="long_side", max_long_side_pixel=None, rows="u8", apply_exif=true,
                    max_bytes=IMAGE_MAX_BYTES, max_pixels=IMAGE_MAX_PIXELS, cancel=None, resize_form=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python function")]
fn prepare_image(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    size_rule: &str,
    max_long_side_pixel: Option<u32>,
    rows: &str,
    apply_exif: bool,
    max_bytes: usize,
    max_pixels: u64,
    cancel: Option<&PyCancelToken>,
    resize_form: Option<&str>,
) -> PyResult<Prepared> {
    let options = ImageOptions {
        form: parse_form(py, resize_form)?,
        rule: parse_rule(py, size_rule, max_long_side_pixel, AREA_MAX_PIXELS)?,
        rows: parse_rows(py, rows)?,
        apply_exif,
        max_bytes,
        max_pixels,
    };
    let token = cancel.map(|c| c.0.clone()).unwrap_or_default();
    let bytes = data.as_bytes();
    let done = py.detach(|| image::prepare_image(bytes, &options, &token));
    to_python(py, done.map_err(|e| raise(py, e))?)
}

#[cfg(feature = "video")]
fn video_options(
    py: Python<'_>,
    fps: Option<f64>,
    max_frames: Option<usize>,
    max_long_side_pixel: Option<u32>,
    rows: &str,
) -> PyResult<VideoOptions> {
    let rule = if max_long_side_pixel.is_some() { "long_side" } else { "area" };
    let options = VideoOptions {
        fps: fps.unwrap_or(VIDEO_FPS_DEFAULT),
        max_frames,
        rule: parse_rule(py, rule, max_long_side_pixel, VIDEO_AREA_MAX_PIXELS)?,
        rows: parse_rows(py, rows)?,
        ..VideoOptions::default()
    };
    options.check().map_err(|e| raise(py, e))?;
    Ok(options)
}

#[cfg(feature = "video")]
#[pyfunction]
#[pyo3(signature = (data, *, fps=None, max_frames=None, max_long_side_pixel=None, rows="u8", max_bytes=VIDEO_MAX_BYTES,
                    max_volume=VIDEO_VOLUME_PIXELS, deadline_s=VIDEO_DEADLINE_S, threads=1, exhaustive=false, cancel=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python function")]
fn prepare_video(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    fps: Option<f64>,
    max_frames: Option<usize>,
    max_long_side_pixel: Option<u32>,
    rows: &str,
    max_bytes: usize,
    max_volume: u64,
    deadline_s: f64,
    threads: u32,
    exhaustive: bool,
    cancel: Option<&PyCancelToken>,
) -> PyResult<Prepared> {
    let options = VideoOptions {
        max_bytes,
        max_volume,
        deadline_s,
        threads,
        exhaustive,
        ..video_options(py, fps, max_frames, max_long_side_pixel, rows)?
    };
    let token = cancel.map(|c| c.0.clone()).unwrap_or_default();
    let bytes = data.as_bytes();
    let done = py.detach(|| video::prepare_video(bytes, &options, &token));
    to_python(py, done.map_err(|e| raise(py, e))?)
}

/// A build without libav says so in one sentence.
#[cfg(not(feature = "video"))]
#[pyfunction]
#[pyo3(signature = (_data, **_options))]
fn prepare_video(
    py: Python<'_>,
    _data: &Bound<'_, PyBytes>,
    _options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Prepared> {
    Err(raise(py, Error::new(Code::DecoderDisabled, "videos are not accepted here: this build has no video decoder")))
}

/// The gateway's cache key, without decoding; same options as `prepare_image`.
#[pyfunction]
#[pyo3(signature = (data, *, size_rule="long_side", max_long_side_pixel=None, rows="u8", apply_exif=true))]
fn source_key(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    size_rule: &str,
    max_long_side_pixel: Option<u32>,
    rows: &str,
    apply_exif: bool,
) -> PyResult<String> {
    let options = ImageOptions {
        rule: parse_rule(py, size_rule, max_long_side_pixel, AREA_MAX_PIXELS)?,
        rows: parse_rows(py, rows)?,
        apply_exif,
        ..ImageOptions::default()
    };
    let bytes = data.as_bytes();
    Ok(py.detach(|| options.source_key(bytes)))
}

/// (format, upright width, upright height, tokens) by the header alone.
#[pyfunction]
#[pyo3(signature = (data, *, size_rule="long_side", max_long_side_pixel=None, apply_exif=true,
                    max_bytes=IMAGE_MAX_BYTES, max_pixels=IMAGE_MAX_PIXELS))]
fn probe(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    size_rule: &str,
    max_long_side_pixel: Option<u32>,
    apply_exif: bool,
    max_bytes: usize,
    max_pixels: u64,
) -> PyResult<(&'static str, u32, u32, usize)> {
    let options = ImageOptions {
        rule: parse_rule(py, size_rule, max_long_side_pixel, AREA_MAX_PIXELS)?,
        apply_exif,
        max_bytes,
        max_pixels,
        ..ImageOptions::default()
    };
    let bytes = data.as_bytes();
    let found = py.detach(|| image::probe(bytes, &options)).map_err(|e| raise(py, e))?;
    Ok((found.format, found.width, found.height, found.tokens))
}

/// `url`: a str, or bytes of which [start, end) are the URL, so that one inside a request's body need not become text first.
#[pyfunction]
#[pyo3(signature = (url, max_bytes, start=0, end=None))]
fn decode_data_url<'py>(
    py: Python<'py>,
    url: &Bound<'py, PyAny>,
    max_bytes: usize,
    start: usize,
    end: Option<usize>,
) -> PyResult<(String, Bound<'py, PyBytes>)> {
    let whole = match url.cast::<PyBytes>() {
        Ok(bytes) => bytes.as_bytes(),
        Err(_) => url.cast::<PyString>()?.to_str()?.as_bytes(),
    };
    let given = whole
        .get(start..end.unwrap_or(whole.len()))
        .ok_or_else(|| PyValueError::new_err("start and end are not a range of the URL's bytes"))?;
    let (media_type, bytes) = py.detach(|| url::decode(given, max_bytes)).map_err(|e| raise(py, e))?;
    Ok((media_type, to_bytes(py, bytes)?))
}

/// ("url" | "text" | "ids", start, end) of each value of a JSON body that is longer than `least` bytes.
#[pyfunction]
fn find_long_values(py: Python<'_>, body: &Bound<'_, PyBytes>, least: usize) -> Vec<(&'static str, usize, usize)> {
    let bytes = body.as_bytes();
    let name = |kind| match kind {
        Kind::Url => "url",
        Kind::Text => "text",
        Kind::Ids => "ids",
    };
    let found = py.detach(|| long_values::find(bytes, least));
    found.into_iter().map(|long| (name(long.kind), long.start, long.end)).collect()
}

/// UTF-8 of the JSON string whose content is [start, end) of the body.
#[pyfunction]
fn long_text<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
    start: usize,
    end: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    long_value(py, body, start, end, long_values::text)
}

/// The JSON list of ids that is [start, end) of the body, as u32 little-endian.
#[pyfunction]
fn long_ids<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
    start: usize,
    end: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    long_value(py, body, start, end, long_values::ids)
}

fn long_value<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
    start: usize,
    end: usize,
    read: fn(&[u8]) -> Option<Vec<u8>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let given = body.as_bytes().get(start..end);
    let value = given.and_then(|given| py.detach(|| read(given)));
    to_bytes(py, value.ok_or_else(|| PyValueError::new_err("start and end are not those of such a value"))?)
}

/// blake3-256 of `prefix` and then [start, end) of `data`.
#[pyfunction]
#[pyo3(signature = (prefix, data, start=0, end=None))]
fn digest<'py>(
    py: Python<'py>,
    prefix: &Bound<'py, PyBytes>,
    data: &Bound<'py, PyBytes>,
    start: usize,
    end: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (prefix, whole) = (prefix.as_bytes(), data.as_bytes());
    let given = whole
        .get(start..end.unwrap_or(whole.len()))
        .ok_or_else(|| PyValueError::new_err("start and end are not a range of the data"))?;
    Ok(PyBytes::new(py, &py.detach(|| hash::digest(prefix, given))))
}

/// `b"".join(pieces)`.
#[pyfunction]
fn join<'py>(py: Python<'py>, pieces: Vec<Bound<'py, PyBytes>>) -> PyResult<Bound<'py, PyBytes>> {
    let given: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    joined(py, &given)
}

fn to_bytes(py: Python<'_>, from: Vec<u8>) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = joined(py, &[&from])?;
    py.detach(move || drop(from));
    Ok(bytes)
}

/// `PyBytes::new` copies with the GIL held: milliseconds for ten megabytes, most of them page faults.
fn joined<'py>(py: Python<'py>, parts: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.len()));
    let length = total.and_then(|n| isize::try_from(n).ok()).ok_or_else(|| PyValueError::new_err("too many bytes"))?;
    // SAFETY: with a null pointer this gives a new bytes object of `length` bytes that are not set yet, or an error.
    let bytes = unsafe {
        let new = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        Bound::from_owned_ptr_or_err(py, new)?.cast_into_unchecked::<PyBytes>()
    };
    let address = bytes.as_bytes().as_ptr() as usize;
    py.detach(|| {
        let mut to = address as *mut u8;
        for piece in parts.iter().flat_map(|part| courtesy::pieces(part)) {
            // SAFETY: nobody else knows the object yet, which lives beyond this call and has room for all parts.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
                to = to.add(piece.len());
            }
        }
    });
    Ok(bytes)
}

#[pyfunction]
fn sniff(data: &[u8]) -> Option<&'static str> {
    magic::sniff(data)
}

/// For measurements: the decoder of `data` alone; returns nothing. Same codes as `prepare_image`.
#[pyfunction]
fn decode_alone(py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
    let bytes = data.as_bytes();
    py.detach(|| image::decode_alone(bytes, &ImageOptions::default())).map_err(|e| raise(py, e))
}

#[pymodule]
fn preproc_rs(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("PREPROCESS_VERSION", PREPROCESS_VERSION)?;
    m.add("BUILD_PROFILE", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    m.add("ERROR_CODES", PyTuple::new(m.py(), Code::ALL.iter().map(|c| c.as_str()))?)?;
    m.add("PreprocError", m.py().get_type::<PreprocError>())?;
    m.add_class::<PyCancelToken>()?;
    m.add_class::<Prepared>()?;
    m.add_function(wrap_pyfunction!(prepare_image, m)?)?;
    m.add("RESIZE_FORMS", PyTuple::new(m.py(), Form::available().iter().map(|form| form.as_str()))?)?;
    m.add("HAS_VIDEO", cfg!(feature = "video"))?;
    m.add("IMAGE_FORMATS", PyTuple::new(m.py(), FORMATS)?)?;
    m.add_function(wrap_pyfunction!(prepare_video, m)?)?;
    m.add_function(wrap_pyfunction!(source_key, m)?)?;
    m.add_function(wrap_pyfunction!(probe, m)?)?;
    m.add_function(wrap_pyfunction!(decode_alone, m)?)?;
    m.add_function(wrap_pyfunction!(decode_data_url, m)?)?;
    m.add_function(wrap_pyfunction!(find_long_values, m)?)?;
    m.add_function(wrap_pyfunction!(long_text, m)?)?;
    m.add_function(wrap_pyfunction!(long_ids, m)?)?;
    m.add_function(wrap_pyfunction!(digest, m)?)?;
    m.add_function(wrap_pyfunction!(join, m)?)?;
    m.add_function(wrap_pyfunction!(sniff, m)?)
}
