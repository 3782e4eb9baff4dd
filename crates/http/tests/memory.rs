//! Nothing is allocated for a piece that ends where its messages end, nor for a body; and what
//! `heap_bytes` says is what was taken. A counting allocator is asked, per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use http::{Connection, Limits};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

thread_local! {
    /// Blocks taken since the thread began.
    static BLOCKS: Cell<usize> = const { Cell::new(0) };
    /// Bytes held now; below zero where a thread frees what another one took.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every request is passed on to `System` as it came; counting neither allocates (the
// thread-locals are constant-initialised and have no destructor) nor touches the blocks.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BLOCKS.set(BLOCKS.get() + 1);
        HELD.set(HELD.get() + layout.size() as isize);
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// A connection and how far its streams were fed.
struct Fed {
    connection: Connection,
    at: [u64; 2],
}

impl Fed {
    fn new() -> Self {
        Self { connection: Connection::new(Limits::default()), at: [0; 2] }
    }

    fn client(&mut self, bytes: &[u8]) {
        self.connection.instream(self.at[0], bytes).for_each(|_| ());
        self.at[0] += bytes.len() as u64;
    }

    fn server(&mut self, bytes: &[u8]) {
        self.connection.outstream(self.at[1], bytes).for_each(|_| ());
        self.at[1] += bytes.len() as u64;
    }

    fn requests_are_answered(&self) -> bool {
        self.connection.takeover().is_some_and(|takeover| takeover.unanswered == 0)
    }
}

const GET: &[u8] = b"GET /a/b?c=d HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n";
const OK: &[u8] =
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\n";

#[test]
fn whole_messages_are_read_without_an_allocation() {
    let mut fed = Fed::new();
    // The queue of waiting requests is made once.
    fed.client(GET);
    fed.server(OK);
    let before = BLOCKS.get();
    for _ in 0..1000 {
        fed.client(GET);
        fed.server(OK);
    }
    assert_eq!(BLOCKS.get() - before, 0);
    assert!(fed.requests_are_answered());
}

#[test]
fn bodies_in_pieces_are_counted_without_an_allocation() {
    let mut fed = Fed::new();
    fed.client(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    let before = BLOCKS.get();
    for _ in 0..1000 {
        for piece in [&b"1"[..], b"0;a", b"=b\r", b"\n0123456789", b"abcdef\r", b"\n"] {
            fed.client(piece);
        }
    }
    fed.client(b"0\r\n\r\n");
    fed.server(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
    for _ in 0..1000 {
        fed.server(&[0; 1000]);
    }
    assert_eq!(BLOCKS.get() - before, 0);
    assert!(fed.requests_are_answered());
}

#[test]
fn what_is_said_to_be_held_is_held() {
    let long = [GET.strip_suffix(b"\r\n").unwrap(), b"X: ", &[b'x'; 5000], b"\r\n\r\n"].concat();
    let before = HELD.get();
    let mut fed = Fed::new();
    for _ in 0..3 {
        for bytes in long.chunks(7) {
            fed.client(bytes);
            let held = usize::try_from(HELD.get() - before).unwrap();
            assert_eq!(fed.connection.heap_bytes(), held);
        }
    }
    assert!(fed.connection.heap_bytes() > 0, "three requests wait");
    // A connection that is passed through holds nothing.
    fed.client(b"\0");
    assert_eq!((fed.connection.heap_bytes(), HELD.get() - before), (0, 0));
}

/// The bar for an idle flow is 1 KiB on each node; most of it must be left to others.
#[test]
fn a_connection_is_small() {
    let size = size_of::<Connection>();
    assert!(size <= 320, "{size} bytes");
}
