//! Counts a body to its end. Nothing of it is held but the trailer section, a kind of head.

use crate::head::{HeadReader, Kind};
use crate::{BodyLength, Doubt, Limits, message};

#[derive(Debug)]
pub(crate) enum Body {
    /// So many bytes are to come.
    Bytes(u64),
    Chunked(Chunked),
    UntilClose,
}

impl Body {
    pub(crate) fn new(length: BodyLength) -> Self {
        match length {
            BodyLength::Bytes(len) => Self::Bytes(len),
            BodyLength::Chunked => Self::Chunked(Chunked::Size(Line::default())),
            BodyLength::UntilClose => Self::UntilClose,
        }
    }

    /// Takes from `bytes` what belongs to the body. Whether it ends there.
    pub(crate) fn read(&mut self, bytes: &mut &[u8], limits: &Limits) -> Result<bool, Doubt> {
        match self {
            Self::Bytes(left) => {
                skip(left, bytes);
                Ok(*left == 0)
            }
            Self::Chunked(chunked) => chunked.read(bytes, limits),
            Self::UntilClose => {
                *bytes = &[];
                Ok(false)
            }
        }
    }

    /// Heap held, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Chunked(Chunked::Trailer(reader)) => reader.heap_bytes(),
            _ => 0,
        }
    }
}

/// RFC 9112 §7.1, without what §2.2 and older readers tolerate: a line ends with CR LF, the size is
/// at least one digit and nothing but digits, white space stands nowhere before an extension.
#[derive(Debug)]
pub(crate) enum Chunked {
    /// In a chunk's first line.
    Size(Line),
    /// In a chunk's data, of which so many bytes are to come.
    Data(u64),
    /// Behind the data: the CR is next.
    DataCr,
    DataLf,
    Trailer(HeadReader),
}

/// A chunk's first line: `chunk-size [ chunk-ext ] CRLF`.
#[derive(Debug, Default)]
pub(crate) struct Line {
    size: u64,
    /// Bytes of the line so far.
    len: usize,
    place: Place,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Size,
    Extension,
    /// Behind the CR.
    End,
}

impl Chunked {
    fn read(&mut self, bytes: &mut &[u8], limits: &Limits) -> Result<bool, Doubt> {
        loop {
            if let Self::Data(left) = self {
                skip(left, bytes);
                if *left == 0 {
                    *self = Self::DataCr;
                }
            } else if let Self::Trailer(reader) = self {
                let Some(section) = reader.read(Kind::Trailer, bytes, limits)? else {
                    return Ok(false);
                };
                return message::trailer(&section).map(|()| true);
            }
            let Some((&byte, rest)) = bytes.split_first() else { return Ok(false) };
            *bytes = rest;
            match self {
                Self::Size(line) => {
                    if line.take(byte, limits)? {
                        *self = match line.size {
                            0 => Self::Trailer(HeadReader::default()),
                            size => Self::Data(size),
                        };
                    }
                }
                Self::DataCr if byte == b'\r' => *self = Self::DataLf,
                Self::DataLf if byte == b'\n' => *self = Self::Size(Line::default()),
                Self::DataCr | Self::DataLf => return Err(Doubt::BadChunk),
                Self::Data(_) | Self::Trailer(_) => unreachable!("handled above"),
            }
        }
    }
}

impl Line {
    /// Whether the line ends with this byte.
    fn take(&mut self, byte: u8, limits: &Limits) -> Result<bool, Doubt> {
        self.len += 1;
        if self.len > limits.head_bytes {
            return Err(Doubt::HeadTooLarge);
        }
        match (&self.place, byte) {
            (Place::End, b'\n') => return Ok(true),
            (Place::Size, b'\r' | b';') if self.len == 1 => return Err(Doubt::BadChunk),
            (Place::Size | Place::Extension, b'\r') => self.place = Place::End,
            (Place::Size, b';') => self.place = Place::Extension,
            (Place::Size, _) => {
                let digit = (byte as char).to_digit(16).ok_or(Doubt::BadChunk)?;
                let size = self.size.checked_mul(16).ok_or(Doubt::BadChunk)?;
                self.size = size + u64::from(digit);
            }
            // RFC 9112 §7.1.1: tokens, quoted strings and white space.
            (Place::Extension, b' '..=b'~' | b'\t' | 0x80..) => {}
            (Place::Extension | Place::End, _) => return Err(Doubt::BadChunk),
        }
        Ok(false)
    }
}

/// Skips as many bytes as are there, but no more than are `left`.
fn skip(left: &mut u64, bytes: &mut &[u8]) {
    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= here as u64;
    *bytes = &bytes[here..];
}
