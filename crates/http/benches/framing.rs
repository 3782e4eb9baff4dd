//! What framing costs: `cargo bench -p http`. The best of five runs, on one thread.

use std::hint::black_box;
use std::time::{Duration, Instant};

use http::{Connection, Limits};

fn main() {
    let get = "GET /static/site.css?v=3 HTTP/1.1\r\nHost: www.example.org\r\n\
        User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
        Accept: text/css,*/*;q=0.1\r\nAccept-Language: en\r\nAccept-Encoding: gzip, deflate, br\r\n\
        Referer: https://www.example.org/\r\nCookie: session=0123456789abcdef\r\n\
        Connection: keep-alive\r\n\r\n";
    let head = "HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\n\
        Content-Type: text/css\r\nCache-Control: max-age=60\r\n";
    let counted = format!("{head}Content-Length: 15000\r\n\r\n{}", "x".repeat(15_000));
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(4));
    for (name, reply) in [("15000 B, counted", &counted), ("16384 B, chunked", &chunked)] {
        for (how, piece) in
            [("whole", usize::MAX), ("in segments of 1448 B", 1448), ("byte by byte", 1)]
        {
            let best = (0..5).map(|_| exchanges(get, reply, piece)).min().unwrap_or_default();
            println!("{name}, {how:<22} {:8} ns per exchange", best.as_nanos());
        }
    }
}

fn exchanges(request: &str, reply: &str, piece: usize) -> Duration {
    let count = if piece == 1 { 200 } else { 20_000 };
    let mut connection = Connection::new(Limits::default());
    let (mut instream, mut outstream, mut events) = (0, 0, 0);
    let start = Instant::now();
    for _ in 0..count {
        for bytes in request.as_bytes().chunks(piece.min(request.len())) {
            connection.instream(instream, black_box(bytes)).for_each(|_| events += 1);
            instream += bytes.len() as u64;
        }
        for bytes in reply.as_bytes().chunks(piece.min(reply.len())) {
            connection.outstream(outstream, black_box(bytes)).for_each(|_| events += 1);
            outstream += bytes.len() as u64;
        }
    }
    let took = start.elapsed() / count;
    assert_eq!(events, 4 * count, "each exchange was framed");
    took
}
