//! Collects a head, line by line, and refuses what readers disagree about.
//!
//! A head may arrive a byte at a time, and a parser that begins anew with every byte does quadratic
//! work. So the lines are found and checked here, each once, and the parser proper (`message`) sees
//! a head only when it is whole. It would also let several things pass that RFC 9112 lets a reader
//! tolerate; tolerance is what request smuggling is made of.
//!
//! Everything is decided at the end of a line, or at a byte's position in the head, never by where
//! a piece ends: how the stream was cut must not show.

use std::borrow::Cow;

use memchr::memchr;

use crate::{Doubt, Limits};

/// What the lines are the head of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Reply,
    /// A trailer section: fields without a first line (RFC 9112 §7.1.2).
    Trailer,
}

#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    /// The head so far, if it began in an earlier piece. Invariant: neither its length nor its
    /// capacity exceeds the limit.
    collected: Vec<u8>,
    lines: Lines,
}

impl HeadReader {
    /// Nothing of the head has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.collected.is_empty()
    }

    /// Nothing has arrived, or nothing that a server would see (RFC 9112 §2.2).
    pub(crate) fn is_blank(&self) -> bool {
        matches!(&self.collected[..], b"" | b"\r\n")
    }

    /// Heap held, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.collected.capacity()
    }

    /// Takes from `bytes` what belongs to the head. Once the head is whole it is returned, with the
    /// empty line at its end, and the one that may stand before a request; the reader then is as
    /// new. `None` if the head goes on behind `bytes`, which are used up.
    pub(crate) fn read<'a>(
        &mut self,
        kind: Kind,
        bytes: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Cow<'a, [u8]>>, Doubt> {
        if self.is_empty() {
            // The common case: a head lies within one piece, and is not copied.
            let piece = *bytes;
            let fits = piece.len().min(limits.head_bytes);
            if let Some(len) = self.lines.read(kind, &piece[..fits], limits)? {
                let (head, rest) = piece.split_at(len);
                *self = Self::default();
                *bytes = rest;
                return Ok(Some(head.into()));
            }
            if fits < piece.len() {
                return Err(Doubt::HeadTooLarge);
            }
            self.collect(piece, limits);
            *bytes = &[];
            return Ok(None);
        }
        while !bytes.is_empty() {
            // A line at a time: what lies behind the head is not copied.
            let line = memchr(b'\n', bytes).map_or(bytes.len(), |lf| lf + 1);
            let fits = line.min(limits.head_bytes - self.collected.len());
            self.collect(&bytes[..fits], limits);
            *bytes = &bytes[fits..];
            if self.lines.read(kind, &self.collected, limits)?.is_some() {
                return Ok(Some(std::mem::take(self).collected.into()));
            }
            if fits < line {
                return Err(Doubt::HeadTooLarge);
            }
        }
        Ok(None)
    }

    fn collect(&mut self, bytes: &[u8], limits: &Limits) {
        let (held, capacity) = (self.collected.len(), self.collected.capacity());
        let needed = held + bytes.len();
        assert!(needed <= limits.head_bytes, "the head's limit holds");
        if needed > capacity {
            let capacity = needed.max(2 * capacity).min(limits.head_bytes);
            self.collected.reserve_exact(capacity - held);
        }
        self.collected.extend_from_slice(bytes);
    }
}

/// How far a head's lines have been read. Positions are those of bytes in the head.
#[derive(Debug, Default)]
struct Lines {
    /// Where the line begins that is being read.
    start: usize,
    /// Up to here no end of that line was found.
    scanned: usize,
    /// An empty line stood before the request line.
    empty_line: bool,
    /// The request line or status line has been read.
    first_line: bool,
    fields: usize,
}

impl Lines {
    /// Reads on in `head`, all of it that is there. The head's length, if it ends there.
    fn read(&mut self, kind: Kind, head: &[u8], limits: &Limits) -> Result<Option<usize>, Doubt> {
        loop {
            if kind != Kind::Trailer && !self.first_line {
                may_begin(kind, &head[self.start..])?;
            }
            let Some(lf) = memchr(b'\n', &head[self.scanned..]) else {
                self.scanned = head.len();
                return Ok(None);
            };
            let end = self.scanned + lf + 1;
            let line = content(&head[self.start..end])?;
            (self.start, self.scanned) = (end, end);
            if self.check(kind, line, limits)? {
                return Ok(Some(end));
            }
        }
    }

    /// Whether the head ends with this line.
    fn check(&mut self, kind: Kind, line: &[u8], limits: &Limits) -> Result<bool, Doubt> {
        if kind != Kind::Trailer && !self.first_line {
            // RFC 9112 §2.2: a server ignores at least one empty line before a request line. Not
            // all ignore more.
            if kind == Kind::Request && line.is_empty() && !self.empty_line {
                self.empty_line = true;
                return Ok(false);
            }
            self.first_line = true;
            return first_line(kind, line).map(|()| false);
        }
        if line.is_empty() {
            return Ok(true);
        }
        self.fields += 1;
        if self.fields > limits.fields {
            return Err(Doubt::TooManyFields);
        }
        field_line(line).map(|()| false)
    }
}

/// What can be said of a first line before it is whole: it may be a long time in coming, and be no
/// line at all.
fn may_begin(kind: Kind, line: &[u8]) -> Result<(), Doubt> {
    match kind {
        // RFC 8446 §5.1: 22 is a record of type handshake.
        Kind::Request if line.first() == Some(&22) => Err(Doubt::Tls),
        // RFC 9110 §9.1: a method is a token. CR begins an empty line.
        Kind::Request
            if line.first().is_some_and(|&b| !is_token(b) && b != b'\r' && b != b'\n') =>
        {
            Err(Doubt::BadRequestLine)
        }
        Kind::Reply if line.iter().zip(b"HTTP/").any(|(byte, expected)| byte != expected) => {
            Err(Doubt::BadStatusLine)
        }
        _ => Ok(()),
    }
}

/// The line without its end.
fn content(line: &[u8]) -> Result<&[u8], Doubt> {
    // RFC 9112 §2.2: "a recipient MAY recognize a single LF as a line terminator"; not all do.
    let line = line.strip_suffix(b"\r\n").ok_or(Doubt::BareLf)?;
    if memchr(b'\r', line).is_some() { Err(Doubt::BareCr) } else { Ok(line) }
}

fn first_line(kind: Kind, line: &[u8]) -> Result<(), Doubt> {
    if kind != Kind::Request {
        // RFC 9112 §4: HTTP-version SP status-code; `httparse` sees to the rest.
        let space = memchr(b' ', line).ok_or(Doubt::BadStatusLine)?;
        return supported(&line[..space]);
    }
    // RFC 9112 §3: method SP request-target SP HTTP-version, and no other white space.
    let mut words = line.splitn(4, |&b| b == b' ');
    let words = [words.next(), words.next(), words.next(), words.next()];
    if words.contains(&Some(b"")) {
        return Err(Doubt::BadRequestLine);
    }
    match words {
        // RFC 9113 §3.4.
        [Some(b"PRI"), Some(b"*"), Some(b"HTTP/2.0"), None] => Err(Doubt::Http2),
        [Some(_), Some(_), Some(version), None] => supported(version),
        // RFC 1945 §4.1: Simple-Request.
        [Some(b"GET"), Some(_), None, None] => Err(Doubt::Http09),
        _ => Err(Doubt::BadRequestLine),
    }
}

fn supported(version: &[u8]) -> Result<(), Doubt> {
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" => Ok(()),
        _ => Err(Doubt::Version),
    }
}

fn field_line(line: &[u8]) -> Result<(), Doubt> {
    // RFC 9112 §5.2.
    if matches!(line[0], b' ' | b'\t') {
        return Err(Doubt::ObsFold);
    }
    let colon = memchr(b':', line).ok_or(Doubt::BadFieldName)?;
    match line[..colon].last() {
        // RFC 9112 §5.1.
        Some(b' ' | b'\t') => Err(Doubt::SpaceBeforeColon),
        Some(_) => Ok(()),
        None => Err(Doubt::BadFieldName),
    }
}

/// RFC 9110 §5.6.2.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
