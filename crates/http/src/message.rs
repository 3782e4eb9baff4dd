//! What a whole head means for the connection: the body behind it, and whether there is a next one.
//!
//! `httparse` reads it; what it reads has been through `head`, so it has nothing left to tolerate.

use std::mem::MaybeUninit;

use httparse::Header;

use crate::limits::FIELDS_MAX;
use crate::{BodyLength, Doubt, Version};

/// Methods that change what a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Head,
    Connect,
    Other,
}

/// A request's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead<'h> {
    pub(crate) method_name: &'h str,
    pub(crate) target: &'h str,
    pub(crate) version: Version,
    pub(crate) body: BodyLength,
    pub(crate) expects_continue: bool,
    pub(crate) persists: bool,
}

impl RequestHead<'_> {
    /// RFC 9110 §9.1: methods are case-sensitive.
    pub(crate) fn method(&self) -> Method {
        match self.method_name {
            "HEAD" => Method::Head,
            "CONNECT" => Method::Connect,
            _ => Method::Other,
        }
    }
}

/// A reply's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyHead {
    pub(crate) status: u16,
    pub(crate) body: BodyLength,
    /// Whether the connection persists as far as the reply says.
    pub(crate) persists: bool,
}

/// Reads a request's head.
pub(crate) fn request(head: &[u8]) -> Result<RequestHead<'_>, Doubt> {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(head, &mut fields).map_err(doubt)?;
    assert_eq!(status, httparse::Status::Complete(head.len()), "the head is whole");
    let (Some(method_name), Some(target)) = (parsed.method, parsed.path) else {
        return Err(Doubt::BadRequestLine);
    };
    let version = version(parsed.version)?;
    let framing = Framing::read(parsed.headers, version)?;
    let body = framing.body().unwrap_or(BodyLength::NONE);
    if method_name == "CONNECT" && body != BodyLength::NONE {
        return Err(Doubt::ConnectWithBody);
    }
    Ok(RequestHead {
        method_name,
        target,
        version,
        body,
        // RFC 9110 §10.1.1: in HTTP/1.0 the expectation is ignored.
        expects_continue: framing.expects_continue && version == Version::Http11,
        persists: framing.persists,
    })
}

/// Reads the head of a reply to a request of this method and version.
pub(crate) fn reply(head: &[u8], method: Method, requested: Version) -> Result<ReplyHead, Doubt> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, head, &mut fields)
        .map_err(doubt)?;
    assert_eq!(status, httparse::Status::Complete(head.len()), "the head is whole");
    // RFC 9110 §15: status codes are from 100 to 599.
    let Some(status @ 100..=599) = parsed.code else { return Err(Doubt::BadStatusLine) };
    let framing = Framing::read(parsed.headers, version(parsed.version)?)?;
    let announced = framing.body();
    let interim = status < 200;
    // RFC 9110 §15.2.
    if interim && requested == Version::Http10 {
        return Err(Doubt::InterimToHttp10);
    }
    // RFC 9112 §6.1.
    if announced == Some(BodyLength::Chunked) && requested == Version::Http10 {
        return Err(Doubt::EncodingInHttp10);
    }
    // RFC 9112 §6.3, rules 1 and 2.
    let body = if interim || status == 204 {
        if announced.is_some_and(|body| body != BodyLength::NONE) {
            return Err(Doubt::BodyForbidden);
        }
        BodyLength::NONE
    } else if status == 304
        || method == Method::Head
        || method == Method::Connect && (200..300).contains(&status)
    {
        BodyLength::NONE
    } else {
        // Rule 8.
        announced.unwrap_or(BodyLength::UntilClose)
    };
    let persists = framing.persists && body != BodyLength::UntilClose;
    Ok(ReplyHead { status, body, persists })
}

/// Reads a trailer section, which must not change what the head said (RFC 9110 §6.5.1).
pub(crate) fn trailer(section: &[u8]) -> Result<(), Doubt> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let status = httparse::parse_headers(section, &mut fields).map_err(doubt)?;
    let httparse::Status::Complete((len, fields)) = status else {
        panic!("the section is whole");
    };
    assert_eq!(len, section.len(), "the section ends with its empty line");
    let frames = |field: &Header<'_>| {
        ["content-length", "transfer-encoding"]
            .iter()
            .any(|name| field.name.eq_ignore_ascii_case(name))
    };
    if fields.iter().any(frames) { Err(Doubt::FramingInTrailer) } else { Ok(()) }
}

fn version(minor: Option<u8>) -> Result<Version, Doubt> {
    match minor {
        Some(1) => Ok(Version::Http11),
        Some(0) => Ok(Version::Http10),
        _ => Err(Doubt::Version),
    }
}

fn doubt(error: httparse::Error) -> Doubt {
    match error {
        httparse::Error::HeaderName => Doubt::BadFieldName,
        httparse::Error::HeaderValue => Doubt::BadFieldValue,
        httparse::Error::NewLine => Doubt::BareCr,
        httparse::Error::Status => Doubt::BadStatusLine,
        httparse::Error::Token => Doubt::BadRequestLine,
        httparse::Error::TooManyHeaders => Doubt::TooManyFields,
        httparse::Error::Version => Doubt::Version,
    }
}

/// The fields that frame.
struct Framing {
    length: Option<u64>,
    chunked: bool,
    expects_continue: bool,
    persists: bool,
}

impl Framing {
    fn read(fields: &[Header<'_>], version: Version) -> Result<Self, Doubt> {
        let mut length = None;
        let mut encoding = Encoding::default();
        let (mut close, mut keep_alive, mut expects_continue) = (false, false, false);
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                // RFC 9112 §6.3, rule 5: a list is several lengths in one field.
                if length.is_some() || field.value.contains(&b',') {
                    return Err(Doubt::RepeatedLength);
                }
                length = Some(decimal(field.value).ok_or(Doubt::BadLength)?);
            } else if is("transfer-encoding") {
                encoding.read(field.value)?;
            } else if is("connection") {
                for option in elements(field.value) {
                    close |= option.eq_ignore_ascii_case(b"close");
                    keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            } else if is("expect") {
                expects_continue |=
                    elements(field.value).any(|e| e.eq_ignore_ascii_case(b"100-continue"));
            }
        }
        if encoding.given {
            if length.is_some() {
                return Err(Doubt::LengthAndEncoding);
            }
            if version == Version::Http10 {
                return Err(Doubt::EncodingInHttp10);
            }
            if !encoding.chunked {
                return Err(Doubt::BadEncoding);
            }
        }
        // RFC 9112 §9.3.
        let persists = !close && (version == Version::Http11 || keep_alive);
        Ok(Self { length, chunked: encoding.chunked, expects_continue, persists })
    }

    /// The body that is announced, if one is.
    fn body(&self) -> Option<BodyLength> {
        if self.chunked { Some(BodyLength::Chunked) } else { self.length.map(BodyLength::Bytes) }
    }
}

/// Transfer-Encoding, over all its fields (RFC 9112 §6.1).
#[derive(Default)]
struct Encoding {
    given: bool,
    /// The last coding so far is chunked.
    chunked: bool,
}

impl Encoding {
    fn read(&mut self, value: &[u8]) -> Result<(), Doubt> {
        self.given = true;
        for coding in value.split(|&b| b == b',') {
            // RFC 9112 §6.1: chunked is never followed by another coding, itself included.
            if self.chunked {
                return Err(Doubt::BadEncoding);
            }
            let coding = coding.trim_ascii();
            self.chunked = coding.eq_ignore_ascii_case(b"chunked");
            // RFC 9112 §7.2.
            let registered = ["gzip", "x-gzip", "deflate", "compress", "x-compress"];
            let is = |name: &&str| coding.eq_ignore_ascii_case(name.as_bytes());
            if !self.chunked && !registered.iter().any(is) {
                return Err(Doubt::BadEncoding);
            }
        }
        Ok(())
    }
}

/// The elements of a comma-separated list (RFC 9110 §5.6.1).
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii)
}

/// RFC 9110 §8.6: `1*DIGIT`, no sign, no space.
fn decimal(value: &[u8]) -> Option<u64> {
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}
