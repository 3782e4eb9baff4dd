//! Clients of the shop: each has one connection after the other, and checks each reply.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use lab::Host;
use nix::sys::socket::{setsockopt, sockopt};
use sha2::{Digest, Sha256};

use super::reply::{Fault, Inbox, Reply, Trouble};
use super::request::{Kind, Request, Talk};
use crate::clock::Bell;
use crate::download::Stall;

/// A client to which so much went wrong goes home.
const MOST_FAILURES: usize = 3;
/// Receive buffer of a slow reader, bytes; the server has to wait for it.
const SLOW_BUFFER: usize = 16 << 10;
/// Pause between the chunks of an upload.
const CHUNK_PAUSE: Duration = Duration::from_millis(1);

/// Makes a connection to the shop.
pub type Dial = Arc<dyn Fn() -> io::Result<TcpStream> + Send + Sync>;

/// What a crowd is to be like.
#[derive(Clone)]
pub struct CrowdSpec {
    /// How many clients, each with one connection at a time.
    pub clients: usize,
    /// How many requests each makes.
    pub each: usize,
    /// How long one waits for the next byte.
    pub patience: Duration,
    /// What they do is drawn from it.
    pub seed: u64,
    /// How they connect.
    pub dial: Dial,
}

/// Clients at work.
#[derive(Debug)]
pub struct Crowd {
    clients: Vec<(Arc<Progress>, JoinHandle<Notes>)>,
    first_failure: Arc<OnceLock<Failure>>,
}

/// What a client has to tell.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Requests that were sent, or begun to be.
    pub sent: Vec<(String, Kind)>,
    /// Replies that were right, as far as a client can tell.
    pub receipts: Vec<Receipt>,
    /// What went wrong; the connection was given up each time.
    pub failures: Vec<Failure>,
    /// All waits for a byte of at least 2 ms, in order.
    pub stalls: Vec<Stall>,
}

/// A reply, as far as the shop's log can confirm it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The request's.
    pub id: String,
    /// Who has executed it, as its reply says.
    pub instance: String,
    /// As how manieth.
    pub number: u64,
    /// As which order.
    pub order: u64,
}

/// Something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of thing.
    pub trouble: Trouble,
    /// The request that waited for its reply, or the last one.
    pub id: String,
    /// In words.
    pub detail: String,
}

#[derive(Debug, Default)]
struct Progress {
    replies: AtomicU64,
    ended: AtomicBool,
}

/// Connects from a host of the lab to the shop at `at`.
pub fn dial_from(host: &Host, at: SocketAddr, patience: Duration) -> Dial {
    let host = host.clone();
    Arc::new(move || {
        let connect = || TcpStream::connect_timeout(&at, patience);
        host.in_netns(connect).unwrap_or_else(|e| Err(io::Error::other(e)))
    })
}

impl Crowd {
    /// Starts them. Rings `bell` at every reply and at the end.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn start(spec: &CrowdSpec, bell: &Bell) -> anyhow::Result<Crowd> {
        let (mut clients, first_failure) = (Vec::new(), Arc::<OnceLock<Failure>>::default());
        for number in 1..=spec.clients {
            let (progress, spec, bell) = (Arc::<Progress>::default(), spec.clone(), bell.clone());
            let (shared, first_failure) = (progress.clone(), first_failure.clone());
            let live = move || {
                let notes = live(number, &spec, &first_failure, || {
                    shared.replies.fetch_add(1, Relaxed);
                    bell.ring();
                });
                shared.ended.store(true, Relaxed);
                bell.ring();
                notes
            };
            let thread = thread::Builder::new().name(format!("client {number}")).spawn(live);
            clients.push((progress, thread.context("cannot start a thread")?));
        }
        Ok(Crowd { clients, first_failure })
    }

    /// How many replies each client has.
    pub fn replies(&self) -> Vec<u64> {
        self.clients.iter().map(|(progress, _)| progress.replies.load(Relaxed)).collect()
    }

    /// How many clients are still at work.
    pub fn at_work(&self) -> usize {
        self.clients.iter().filter(|(progress, _)| !progress.ended.load(Relaxed)).count()
    }

    /// What went wrong first, if something has.
    pub fn first_failure(&self) -> Option<&Failure> {
        self.first_failure.get()
    }

    /// Waits for all of them.
    pub fn finish(self) -> Vec<Notes> {
        let join = |(_, thread): (_, JoinHandle<Notes>)| thread.join();
        self.clients.into_iter().map(|c| join(c).expect("clients do not panic")).collect()
    }
}

fn live(
    number: usize,
    spec: &CrowdSpec,
    first_failure: &OnceLock<Failure>,
    mut tick: impl FnMut(),
) -> Notes {
    let mut rng = Rng::with_seed(spec.seed.wrapping_add(number as u64));
    let (mut notes, mut made, mut named) = (Notes::default(), 0, 0);
    while made < spec.each && notes.failures.len() < MOST_FAILURES {
        let name = || {
            named += 1;
            format!("{:08x}-{number}-{named}", spec.seed as u32)
        };
        let talk = Talk::draw(&mut rng, spec.each - made, name);
        made += talk.len();
        let dialed = (spec.dial)().map_err(|e| {
            let (trouble, id) = (Trouble::of(&e), talk.bursts[0][0].id.clone());
            Failure { trouble, id, detail: format!("connecting: {e}") }
        });
        let done = dialed
            .and_then(|stream| converse(&stream, &talk, spec.patience, &mut notes, &mut tick));
        if let Err(failure) = done {
            let _ = first_failure.set(failure.clone()); // somebody else's may be the first
            notes.failures.push(failure);
        }
    }
    notes
}

/// Has one connection from its first request to its end.
fn converse(
    stream: &TcpStream,
    talk: &Talk,
    patience: Duration,
    notes: &mut Notes,
    mut tick: impl FnMut(),
) -> Result<(), Failure> {
    let Notes { sent, receipts, stalls, .. } = notes;
    let mut inbox = Inbox::new(stream, talk.slow, patience, stalls);
    let mut answered = HashSet::new();
    let mut last = "";
    let at = |id: &str| {
        let id = id.to_owned();
        move |fault: Fault| Failure { trouble: fault.trouble, id, detail: fault.detail }
    };
    for burst in &talk.bursts {
        last = &burst[0].id;
        sent.extend(burst.iter().map(|request| (request.id.clone(), request.kind)));
        prepare(stream, talk.slow, patience)
            .and_then(|()| send(stream, burst, &mut inbox))
            .map_err(at(last))?;
        for (number, request) in burst.iter().enumerate() {
            last = &request.id;
            let reply = inbox.reply(request.kind == Kind::Head).map_err(at(last))?;
            let checked = check(request, &reply, &answered, &burst[number + 1..]);
            receipts.push(checked.map_err(at(last))?);
            answered.insert(last);
            tick();
        }
        inbox.expect_nothing().map_err(at(last))?;
    }
    // A connection that is over already needs no end from us.
    let _ = stream.shutdown(Shutdown::Write);
    inbox.expect_end().map_err(at(last))
}

fn prepare(stream: &TcpStream, slow: bool, patience: Duration) -> Result<(), Fault> {
    let prepare = || {
        if slow {
            setsockopt(stream, sockopt::RcvBuf, &SLOW_BUFFER)?;
        }
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))
    };
    prepare().map_err(|e| Trouble::of(&e).with(format!("{e}")))
}

/// Sends what can be sent together as one piece, and an upload chunk by chunk.
fn send(mut stream: &TcpStream, burst: &[Request], inbox: &mut Inbox) -> Result<(), Fault> {
    let mut write = |bytes: &[u8]| {
        stream.write_all(bytes).map_err(|e| Trouble::of(&e).with(format!("sending: {e}")))
    };
    match burst {
        [one] => {
            for (number, part) in one.parts.iter().enumerate() {
                match number {
                    0 => {}
                    1 if one.expects => inbox.go_ahead()?,
                    _ => thread::sleep(CHUNK_PAUSE),
                }
                write(part)?;
            }
            Ok(())
        }
        many => write(&many.iter().flat_map(|request| request.parts.concat()).collect::<Vec<_>>()),
    }
}

/// Whether this is the reply to `request`: none of the connection's earlier or later ones, and of
/// one piece.
pub(super) fn check(
    request: &Request,
    reply: &Reply,
    answered: &HashSet<&str>,
    later: &[Request],
) -> Result<Receipt, Fault> {
    if reply.status != 200 {
        let body = String::from_utf8_lossy(&reply.body[..reply.body.len().min(100)]).into_owned();
        return Err(Trouble::Status.with(format!("{}: {body}", reply.status)));
    }
    let field = |name| reply.fields.must(name);
    let id = field("x-request-id")?;
    if id != request.id {
        let trouble = match id {
            _ if answered.contains(id) => Trouble::Second,
            _ if later.iter().any(|request| request.id == id) => Trouble::Order,
            _ => Trouble::Mixed,
        };
        return Err(trouble.with(format!("the reply is one to {id}")));
    }
    let (hash, told) = (format!("{:x}", Sha256::digest(&reply.body)), field("x-body-sha256")?);
    if hash != told {
        let length = reply.body.len();
        return Err(Trouble::Hash.with(format!("{length} bytes hash to {hash}, not to {told}")));
    }
    let receipt = Receipt {
        id: id.to_owned(),
        instance: field("x-instance")?.to_owned(),
        number: reply.fields.number("x-number")?,
        order: reply.fields.number("x-order")?,
    };
    let bought = || format!("order {} for {id}\n", receipt.order);
    if request.kind == Kind::Buy && reply.body != bought().as_bytes() {
        return Err(Trouble::Mixed.with("head and body are of two orders"));
    }
    if let Some(upload) = &request.upload
        && reply.body != upload.as_bytes()
    {
        return Err(Trouble::Upload.with("the shop got other bytes than were sent"));
    }
    Ok(receipt)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;
    use crate::shop::request::pages;

    /// A page as the shop would send it.
    fn page(id: &str, body: &str) -> String {
        let (hash, length) = (Sha256::digest(body), body.len());
        format!(
            "HTTP/1.1 200 OK\r\nX-Request-Id: {id}\r\nX-Instance: a-1\r\nX-Number: 1\r\n\
             X-Order: 7\r\nX-Body-Sha256: {hash:x}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }

    /// What becomes of a talk with a server that sends `replies[i]` to the i-th burst, whose sizes
    /// are given, and closes.
    fn talk(bursts: &[usize], replies: Vec<String>) -> (usize, Option<(Trouble, String)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut requests = pages(bursts.iter().sum());
        let bursts: Vec<Vec<Request>> =
            bursts.iter().map(|&count| requests.drain(..count).collect()).collect();
        let talk = Talk { bursts, slow: false };
        let sizes: Vec<usize> = talk.bursts.iter().map(Vec::len).collect();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for (count, reply) in sizes.into_iter().zip(replies) {
                for _ in 0..count {
                    // An empty line ends each request. A client that has noticed hangs up.
                    if !lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
                        return;
                    }
                }
                let _ = (&stream).write_all(reply.as_bytes());
            }
        });
        let stream = TcpStream::connect(at).unwrap();
        let mut notes = Notes::default();
        let result = converse(&stream, &talk, Duration::from_secs(5), &mut notes, || {});
        drop(stream);
        server.join().unwrap();
        (notes.receipts.len(), result.err().map(|failure| (failure.trouble, failure.id)))
    }

    #[test]
    fn right_replies_are_right() {
        let replies = [page("r1", "x"), page("r2", "") + &page("r3", "yy")];
        assert_eq!(talk(&[1, 2], replies.into()), (3, None));
        // Chunks, an interim reply, and one that the end of the connection ends.
        let chunked = page("r1", "hello")
            .replace("Content-Length: 5", "Transfer-Encoding: chunked")
            .replace("\r\n\r\nhello", "\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n");
        let open = page("r2", "hello").replace("Content-Length: 5", "Connection: close");
        let replies = vec![format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{chunked}"), open];
        assert_eq!(talk(&[1, 1], replies), (2, None));
    }

    #[test]
    fn each_kind_of_broken_reply_is_found() {
        let check = |bursts: &[usize], replies: &[String], right: usize, trouble, id: &str| {
            let expected = (right, Some((trouble, id.to_owned())));
            assert_eq!(talk(bursts, replies.to_vec()), expected, "{replies:?}");
        };
        let (one, two) = (page("r1", "one"), page("r2", "two"));
        // Somebody else's reply; the head of one and the body of another.
        check(&[1], &[page("r9", "nine")], 0, Trouble::Mixed, "r1");
        check(&[1], &[one.replace("one", "eno")], 0, Trouble::Hash, "r1");
        check(&[2], &[format!("{}{two}", &one[..one.len() - 1])], 0, Trouble::Hash, "r1");
        // Executed again: the second reply behind the first one, or instead of the next one, or
        // when nothing is asked any more.
        check(&[2], &[format!("{one}{one}{two}")], 1, Trouble::Second, "r2");
        check(&[1, 1], &[one.clone(), one.clone()], 1, Trouble::Second, "r2");
        check(&[1, 1], &[one.clone(), format!("{two}{two}")], 2, Trouble::Second, "r2");
        check(&[1], &[format!("{one}\r\n")], 1, Trouble::Second, "r1");
        // Cut off in the body, in the head, and before it.
        check(&[1], &[one[..one.len() - 1].to_owned()], 0, Trouble::Cut, "r1");
        check(&[2], &[format!("{one}HTTP/1.1 20")], 1, Trouble::Cut, "r2");
        check(&[1, 1], &[one.clone(), String::new()], 1, Trouble::Cut, "r2");
        // Pipelined replies in the wrong order.
        check(&[2], &[format!("{two}{one}")], 0, Trouble::Order, "r1");
        // What is no reply of the shop at all.
        check(&[1], &["SSH-2.0\r\n\r\n".to_owned()], 0, Trouble::Malformed, "r1");
        check(&[1], &[one.replace("Content-Length", "Length")], 0, Trouble::Malformed, "r1");
        check(&[1], &[one.replace("X-Number", "X-Order")], 0, Trouble::Malformed, "r1");
        check(&[1], &[one.replace("200 OK", "502 Bad Gateway")], 0, Trouble::Status, "r1");
    }

    #[test]
    fn chunks_are_read_to_the_letter() {
        let chunked =
            page("r1", "hello").replace("Content-Length: 5", "Transfer-Encoding: chunked");
        let head = chunked.strip_suffix("hello").unwrap();
        for (chunks, trouble) in [
            ("5\r\nhello\r\n0\r\n\r\n", None),
            ("5\r\nhello\r\n0\r\n\r\n0\r\n\r\n", Some(Trouble::Second)),
            ("5\r\nhello\r\n0\r\n", Some(Trouble::Cut)),
            ("5\r\nhello\r\n", Some(Trouble::Cut)),
            ("4\r\nhello\r\n0\r\n\r\n", Some(Trouble::Malformed)),
            ("x\r\nhello\r\n0\r\n\r\n", Some(Trouble::Malformed)),
            ("4\r\nhell\r\n0\r\n\r\n", Some(Trouble::Hash)),
        ] {
            let (_, failed) = talk(&[1], vec![format!("{head}{chunks}")]);
            assert_eq!(failed.map(|(trouble, _)| trouble), trouble, "{chunks:?}");
        }
    }

    #[test]
    fn silence_and_nobody_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let spec = CrowdSpec {
            clients: 1,
            each: 1,
            patience: Duration::from_millis(50),
            seed: 1,
            dial: Arc::new(move || TcpStream::connect(at)),
        };
        let trouble = || {
            let first = OnceLock::new();
            let notes = live(1, &spec, &first, || {});
            assert_eq!(Some(&notes.failures[0]), first.get());
            notes.failures[0].trouble
        };
        // Nobody accepts, but the kernel does.
        assert_eq!(trouble(), Trouble::Timeout);
        drop(listener);
        assert_eq!(trouble(), Trouble::Refused);
    }
}
