//! What the shop is asked, and in which ways.

use std::ops::Range;

use fastrand::Rng;
use sha2::{Digest, Sha256};

/// Bytes of the longest upload.
const LONGEST_UPLOAD: usize = 200_000;
/// Bytes of an upload's chunk.
const CHUNK: Range<usize> = 1..16_000;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A page of random length.
    Page,
    /// The head of one.
    Head,
    /// The last orders.
    Orders,
    /// One order.
    Buy,
    /// The hash of what is sent, in chunks.
    Upload,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Page, Kind::Head, Kind::Orders, Kind::Buy, Kind::Upload];

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Page => "GET /page",
            Kind::Head => "HEAD /page",
            Kind::Orders => "GET /orders",
            Kind::Buy => "POST /buy",
            Kind::Upload => "POST /upload",
        }
    }
}

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    /// No other request has it.
    pub id: String,
    pub(crate) kind: Kind,
    /// The head with a short body; then an upload's chunks.
    pub(crate) parts: Vec<Vec<u8>>,
    /// It says `Expect: 100-continue`, and the chunks wait for that.
    pub(crate) expects: bool,
    /// SHA-256 of the upload, in hexadecimal.
    pub(crate) upload: Option<String>,
}

/// What a client does with one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Talk {
    /// Requests that are sent together. The next ones follow when all of these are answered.
    pub(crate) bursts: Vec<Vec<Request>>,
    /// Replies are read in small pieces with pauses between them.
    pub(crate) slow: bool,
}

/// How a request says that the connection ends with its reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Open,
    Close,
    /// HTTP/1.0: a reply without a length ends with the connection.
    Old,
}

impl Talk {
    /// The next talk of a client that has at most so many requests left. `name` makes their ids.
    pub(crate) fn draw(rng: &mut Rng, left: usize, mut name: impl FnMut() -> String) -> Talk {
        let simple = |rng: &mut Rng| match rng.u8(..10) {
            0..4 => Kind::Page,
            4 => Kind::Head,
            5 => Kind::Orders,
            _ => Kind::Buy,
        };
        let left = left.max(1);
        let some = |rng: &mut Rng, most: usize| rng.usize(1..=most.min(left));
        let (mut bursts, mut slow) = (Vec::new(), false);
        match rng.u8(..10) {
            0..4 => {
                let count = some(rng, 20);
                let closes = rng.bool();
                for number in 1..=count {
                    let last = closes && number == count;
                    let ending = if last { Ending::Close } else { Ending::Open };
                    let kind = simple(rng);
                    bursts.push(vec![Request::new(rng, name(), kind, ending)]);
                }
            }
            4..7 => {
                let mut left = some(rng, 20);
                while left > 0 {
                    let count = rng.usize(1..=left.min(6));
                    left -= count;
                    let request = |_| {
                        let kind = simple(rng);
                        Request::new(rng, name(), kind, Ending::Open)
                    };
                    bursts.push((0..count).map(request).collect());
                }
            }
            7 => {
                for _ in 0..some(rng, 4) {
                    bursts.push(vec![Request::new(rng, name(), Kind::Upload, Ending::Open)]);
                }
            }
            8 => {
                slow = true;
                for _ in 0..some(rng, 3) {
                    bursts.push(vec![Request::new(rng, name(), Kind::Page, Ending::Open)]);
                }
            }
            _ => {
                let kind = simple(rng);
                bursts.push(vec![Request::new(rng, name(), kind, Ending::Old)]);
            }
        }
        Talk { bursts, slow }
    }

    /// How many requests there are in it.
    pub(crate) fn len(&self) -> usize {
        self.bursts.iter().map(Vec::len).sum()
    }
}

impl Request {
    /// One on a connection that stays open.
    pub(crate) fn draw(rng: &mut Rng, id: String, kind: Kind) -> Request {
        Request::new(rng, id, kind, Ending::Open)
    }

    /// All of it.
    pub fn bytes(&self) -> Vec<u8> {
        self.parts.concat()
    }

    fn new(rng: &mut Rng, id: String, kind: Kind, ending: Ending) -> Request {
        let minor = if ending == Ending::Old { 0 } else { 1 };
        let name = kind.name();
        let mut head = format!("{name} HTTP/1.{minor}\r\nHost: shop\r\nX-Request-Id: {id}\r\n");
        if ending == Ending::Close {
            head.push_str("Connection: close\r\n");
        }
        let (mut chunks, mut expects, mut upload) = (Vec::new(), false, None);
        match kind {
            Kind::Page | Kind::Head | Kind::Orders => head.push_str("\r\n"),
            Kind::Buy => {
                let body = format!("article={}&number={}", rng.u32(..), rng.u8(1..));
                head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
            }
            Kind::Upload => {
                let mut body = vec![0; rng.usize(..LONGEST_UPLOAD)];
                rng.fill(&mut body);
                upload = Some(format!("{:x}", Sha256::digest(&body)));
                chunks = in_chunks(rng, &body);
                expects = rng.bool();
                head.push_str("Transfer-Encoding: chunked\r\n");
                head.push_str(if expects { "Expect: 100-continue\r\n\r\n" } else { "\r\n" });
            }
        }
        let parts = [head.into_bytes()].into_iter().chain(chunks).collect();
        Request { id, kind, parts, expects, upload }
    }
}

/// RFC 9112, section 7.1; the last chunk is empty.
fn in_chunks(rng: &mut Rng, mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(rng.usize(CHUNK).min(body.len()));
        chunks.push([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        body = rest;
    }
    chunks.push(b"0\r\n\r\n".to_vec());
    chunks
}

#[cfg(test)]
pub(crate) fn pages(count: usize) -> Vec<Request> {
    let mut rng = Rng::with_seed(1);
    let page = |n| Request::new(&mut rng, format!("r{n}"), Kind::Page, Ending::Open);
    (1..=count).map(page).collect()
}
