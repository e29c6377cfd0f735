//! The one error of this crate: a stable code and a sentence for the person who sent the file.

use std::fmt;

macro_rules! codes {
    ($($name:ident => $text:literal, $doc:literal;)*) => {
        /// Whose fault, and what kind. `as_str` is stable and part of the Python interface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $(#[doc = $doc] $name,)* }
        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
        }
    };
}

codes! {
    UnsupportedFormat => "unsupported_format", "not a format that is decoded here";
    DecoderDisabled => "decoder_disabled", "a known format that this build leaves out";
    Corrupt => "corrupt", "the data contradicts its format";
    Truncated => "truncated", "the data ends too early";
    TooManyBytes => "too_many_bytes", "larger than the byte budget";
    TooManyPixels => "too_many_pixels", "larger than the pixel budget";
    BadDimensions => "bad_dimensions", "zero or impossible width or height";
    BadAspectRatio => "bad_aspect_ratio", "longer than 200 times its other side";
    LimitExceeded => "limit_exceeded", "any other budget";
    Deadline => "deadline", "took longer than allowed";
    Cancelled => "cancelled", "the caller gave up";
    OutOfMemory => "out_of_memory", "an allocation failed";
    BadOption => "bad_option", "the caller's option is out of range";
    BadDataUrl => "bad_data_url", "not a base64 data: URL of media";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for Error {}

/// `bail!(Code, "format", args)` returns early with that error.
macro_rules! bail {
    ($code:ident, $($arg:tt)*) => {
        return Err($crate::error::Error::new($crate::error::Code::$code, format!($($arg)*)))
    };
}
pub(crate) use bail;
