//! Replies, read from a connection as strictly as they should be made.
//!
//! Heads and the sizes of chunks are read by `httparse`. Where a body ends is decided here and not
//! by the product's crate `http`: what it takes for a reply is what is put to the test.

use std::io::{self, Read};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Response, Status, parse_chunk_size};

use crate::clock::now_ns;
use crate::download::{STALL_NS, Stall};

/// A longer head, or line of a chunk, is none of the shop's; bytes.
const LONGEST_HEAD: usize = 16 << 10;
/// A longer body is none of the shop's; bytes.
const LONGEST_BODY: usize = 1 << 20;
/// Bytes that a slow reader takes at once.
const SLOW_BYTES: usize = 2048;
/// How long it then waits.
const SLOW_PAUSE: Duration = Duration::from_millis(1);

/// What can be wrong with a reply, or come instead of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Nobody accepts the connection.
    Refused,
    /// The connection was reset.
    Reset,
    /// It was closed before the reply was whole.
    Cut,
    /// No byte came for too long, or none could be sent.
    Timeout,
    /// It is not HTTP, or nothing says where it ends.
    Malformed,
    /// It is no 200.
    Status,
    /// It, or a part of it, is a reply to something else.
    Mixed,
    /// It answers a later request of the same connection.
    Order,
    /// It answers a request that is answered already, or follows where nothing may.
    Second,
    /// Its body is not that of its head.
    Hash,
    /// It says that other bytes were uploaded.
    Upload,
}

/// A trouble, in one case.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) trouble: Trouble,
    pub(crate) detail: String,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
}

/// Header fields; names in small letters.
#[derive(Debug)]
pub(crate) struct Fields(Vec<(String, String)>);

/// What comes from the server, and what of it has not been understood yet.
#[derive(Debug)]
pub(crate) struct Inbox<'a> {
    from: &'a TcpStream,
    got: Vec<u8>,
    slow: bool,
    patience: Duration,
    stalls: &'a mut Vec<Stall>,
}

impl Trouble {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Trouble::Refused => "connection refused",
            Trouble::Reset => "connection reset",
            Trouble::Cut => "cut reply",
            Trouble::Timeout => "timeout",
            Trouble::Malformed => "malformed reply",
            Trouble::Status => "wrong status",
            Trouble::Mixed => "mixed reply",
            Trouble::Order => "wrong order",
            Trouble::Second => "second reply",
            Trouble::Hash => "wrong hash",
            Trouble::Upload => "wrong upload",
        }
    }

    /// A fault of this kind.
    pub(crate) fn with(self, detail: impl Into<String>) -> Fault {
        Fault { trouble: self, detail: detail.into() }
    }

    /// What an error of a socket means.
    pub(crate) fn of(error: &io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Trouble::Timeout,
            io::ErrorKind::ConnectionRefused => Trouble::Refused,
            _ => Trouble::Reset,
        }
    }
}

impl Fields {
    /// A field that may be there once.
    pub(crate) fn once(&self, name: &str) -> Result<Option<&str>, Fault> {
        let mut all = self.0.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str());
        match (all.next(), all.next()) {
            (one, None) => Ok(one),
            _ => Err(Trouble::Malformed.with(format!("the field {name} is there twice"))),
        }
    }

    /// A field that must be there once.
    pub(crate) fn must(&self, name: &str) -> Result<&str, Fault> {
        let missing = || Trouble::Malformed.with(format!("the field {name} is missing"));
        self.once(name)?.ok_or_else(missing)
    }

    /// The same, as a number.
    pub(crate) fn number(&self, name: &str) -> Result<u64, Fault> {
        let text = self.must(name)?;
        text.parse().map_err(|_| Trouble::Malformed.with(format!("{name} is {text:?}")))
    }
}

impl<'a> Inbox<'a> {
    /// Waits for at most `patience` for each piece; waits that are worth it are noted as `stalls`.
    pub(crate) fn new(
        from: &'a TcpStream,
        slow: bool,
        patience: Duration,
        stalls: &'a mut Vec<Stall>,
    ) -> Inbox<'a> {
        Inbox { from, got: Vec::new(), slow, patience, stalls }
    }

    /// The next reply that is not interim. One to HEAD has no body, whatever it announces.
    pub(crate) fn reply(&mut self, to_head: bool) -> Result<Reply, Fault> {
        loop {
            let (status, minor, fields) = self.head()?;
            if status / 100 == 1 {
                continue; // RFC 9110, section 15.2: any number of them may come
            }
            let length = fields.once("content-length")?;
            let coding = fields.once("transfer-encoding")?;
            let connection = fields.once("connection")?.unwrap_or_default().to_ascii_lowercase();
            let closes = connection == "close" || (minor == 0 && connection != "keep-alive");
            let body = match (coding, length) {
                _ if to_head => Vec::new(),
                (Some("chunked"), None) if minor == 1 => self.chunks()?,
                (None, Some(_)) => {
                    let length = fields.number("content-length")?;
                    self.exactly(usize::try_from(length).unwrap_or(usize::MAX))?
                }
                (None, None) if closes => self.until_closed()?,
                _ => return Err(Trouble::Malformed.with("nothing says where its body ends")),
            };
            return Ok(Reply { status, fields, body });
        }
    }

    /// Waits for `100 Continue`.
    pub(crate) fn go_ahead(&mut self) -> Result<(), Fault> {
        match self.head()? {
            (100, ..) => Ok(()),
            (status, ..) => Err(Trouble::Status.with(format!("{status} instead of 100"))),
        }
    }

    /// Nothing has come that is not understood.
    pub(crate) fn expect_nothing(&self) -> Result<(), Fault> {
        match self.got.len() {
            0 => Ok(()),
            more => Err(Trouble::Second.with(format!("{more} bytes behind the last reply"))),
        }
    }

    /// The server closes, and says nothing before it does.
    pub(crate) fn expect_end(&mut self) -> Result<(), Fault> {
        while self.fill()? {
            self.expect_nothing()?;
        }
        Ok(())
    }

    /// Status, minor version, fields.
    fn head(&mut self) -> Result<(u16, u8, Fields), Fault> {
        loop {
            let mut fields = [EMPTY_HEADER; 64];
            let mut head = Response::new(&mut fields);
            match head.parse(&self.got) {
                Ok(Status::Complete(length)) => {
                    let (status, minor) = (head.code.unwrap_or(0), head.version.unwrap_or(0));
                    let field = |f: &httparse::Header| {
                        let value = String::from_utf8_lossy(f.value).into_owned();
                        (f.name.to_ascii_lowercase(), value)
                    };
                    let fields = Fields(head.headers.iter().map(field).collect());
                    self.got.drain(..length);
                    return Ok((status, minor, fields));
                }
                Ok(Status::Partial) if self.got.len() < LONGEST_HEAD => self.more("head")?,
                Ok(Status::Partial) => {
                    return Err(Trouble::Malformed.with("its head does not end"));
                }
                Err(e) => return Err(Trouble::Malformed.with(format!("its head: {e}"))),
            }
        }
    }

    /// A body of so many bytes.
    fn exactly(&mut self, length: usize) -> Result<Vec<u8>, Fault> {
        if length > LONGEST_BODY {
            return Err(Trouble::Malformed.with(format!("its body has {length} bytes")));
        }
        while self.got.len() < length {
            self.more("body")?;
        }
        Ok(self.got.drain(..length).collect())
    }

    /// A body in chunks without a trailer: RFC 9112, section 7.1.
    fn chunks(&mut self) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        loop {
            let size = loop {
                match parse_chunk_size(&self.got) {
                    Ok(Status::Complete((length, size))) => {
                        self.got.drain(..length);
                        break usize::try_from(size).unwrap_or(usize::MAX);
                    }
                    Ok(Status::Partial) if self.got.len() < LONGEST_HEAD => self.more("chunk")?,
                    _ => return Err(Trouble::Malformed.with("a chunk has no size")),
                }
            };
            body.extend(self.exactly(size)?);
            if self.exactly(2)? != b"\r\n" {
                return Err(Trouble::Malformed.with("a chunk does not end where it should"));
            }
            match size {
                0 => return Ok(body),
                _ if body.len() > LONGEST_BODY => {
                    return Err(Trouble::Malformed.with("its chunks do not end"));
                }
                _ => {}
            }
        }
    }

    /// A body that ends with the connection.
    fn until_closed(&mut self) -> Result<Vec<u8>, Fault> {
        while self.fill()? {
            if self.got.len() > LONGEST_BODY {
                return Err(Trouble::Malformed.with("its body does not end"));
            }
        }
        Ok(std::mem::take(&mut self.got))
    }

    /// At least one more byte of a reply.
    fn more(&mut self, what: &str) -> Result<(), Fault> {
        let had = self.got.len();
        if self.fill()? {
            return Ok(());
        }
        Err(Trouble::Cut.with(format!("closed after {had} bytes of a {what}")))
    }

    /// Reads once; `false` at the end.
    fn fill(&mut self) -> Result<bool, Fault> {
        let mut buffer = [0; 64 << 10];
        let room = if self.slow { SLOW_BYTES } else { buffer.len() };
        if self.slow {
            thread::sleep(SLOW_PAUSE);
        }
        let from_ns = now_ns();
        let read = self
            .from
            .set_read_timeout(Some(self.patience))
            .and_then(|()| self.from.read(&mut buffer[..room]));
        let to_ns = now_ns();
        if to_ns - from_ns >= STALL_NS {
            self.stalls.push(Stall { from_ns, to_ns });
        }
        match read {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.got.extend_from_slice(&buffer[..count]);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => self.fill(),
            Err(e) => {
                let (trouble, had) = (Trouble::of(&e), self.got.len());
                let why = match trouble {
                    Trouble::Timeout => format!("nothing for {:?}", self.patience),
                    _ => e.to_string(),
                };
                Err(trouble.with(format!("{why} after {had} bytes")))
            }
        }
    }
}
