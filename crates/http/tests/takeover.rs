//! What a takeover would find, after each step of a connection's life.

mod common;

use common::*;
use http::{Connection, Limits, Resume, Takeover};

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n"; // 18 bytes
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"; // 40 bytes
const CLOSING: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"; // 57 bytes
const POST: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"; // 38 + 4 bytes

fn takeover(resume: Resume, outstream_at: u64, complete: bool, unanswered: usize) -> Takeover {
    Takeover { resume, outstream_at, last_reply_complete: complete, unanswered }
}

/// Plays the steps, and compares after each.
#[track_caller]
fn check(steps: &[(Step<'_>, Takeover)]) {
    let mut player = Player::new(Limits::default());
    for (i, (step, expected)) in steps.iter().enumerate() {
        player.play(*step);
        assert_eq!(player.connection.takeover(), Some(*expected), "after step {i}, {step:?}");
    }
}

use Resume::{At, BehindBody, Closed};

#[test]
fn nothing_has_happened() {
    let fresh = Connection::starting_at(7, 9, Limits::default()).takeover();
    assert_eq!(fresh, Some(takeover(At(7), 9, true, 0)));
}

#[test]
fn the_first_unanswered_request_is_where_reading_begins() {
    check(&[
        (Client(&GET[..5]), takeover(At(0), 0, true, 0)),
        (Client(&GET[5..]), takeover(At(0), 0, true, 1)),
        (Server(&OK[..1]), takeover(At(0), 0, false, 1)),
        (Server(&OK[1..39]), takeover(At(0), 0, false, 1)),
        (Server(&OK[39..]), takeover(At(18), 40, true, 0)),
        // Pipelined, and a part of one more.
        (Client(GET), takeover(At(18), 40, true, 1)),
        (Client(POST), takeover(At(18), 40, true, 2)),
        (Client(b"\r\nGE"), takeover(At(18), 40, true, 2)),
        (Server(OK), takeover(At(36), 80, true, 1)),
        (Server(OK), takeover(At(78), 120, true, 0)),
        (Client(b"T / HTTP/1.1\r\n\r\n"), takeover(At(78), 120, true, 1)),
        (Server(CLOSING), takeover(Closed, 177, true, 0)),
    ]);
}

#[test]
fn a_request_that_is_not_whole_begins_anew_where_it_began() {
    check(&[
        (Client(&POST[..38]), takeover(At(0), 0, true, 1)),
        (Client(&POST[38..40]), takeover(At(0), 0, true, 1)),
        (Server(&OK[..20]), takeover(At(0), 0, false, 1)),
        (Client(&POST[40..]), takeover(At(0), 0, false, 1)),
        (Server(&OK[20..]), takeover(At(42), 40, true, 0)),
    ]);
}

#[test]
fn an_answered_request_of_which_the_body_is_still_coming_cannot_be_resumed_yet() {
    check(&[
        (Client(&POST[..40]), takeover(At(0), 0, true, 1)),
        (Server(OK), takeover(BehindBody { request: 0 }, 40, true, 0)),
        (Client(&POST[40..41]), takeover(BehindBody { request: 0 }, 40, true, 0)),
        (Client(&POST[41..]), takeover(At(42), 40, true, 0)),
    ]);
}

#[test]
fn interim_replies_are_whole_but_answer_nothing() {
    check(&[
        (
            Client(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"),
            takeover(At(0), 0, true, 1),
        ),
        (Server(b"HTTP/1.1 100 C\r\n"), takeover(At(0), 0, false, 1)),
        (Server(b"\r\n"), takeover(At(0), 18, true, 1)),
        (Client(b"x"), takeover(At(0), 18, true, 1)),
        (Server(&OK[..3]), takeover(At(0), 18, false, 1)),
        (Server(&OK[3..]), takeover(At(60), 58, true, 0)),
    ]);
}

#[test]
fn a_connection_that_ends_is_not_resumed() {
    // The server says so, then closes; what was pipelined is not executed by anybody.
    check(&[
        (Client(&GET.repeat(2)), takeover(At(0), 0, true, 2)),
        (Server(&CLOSING[..50]), takeover(At(0), 0, false, 2)),
        (Server(&CLOSING[50..]), takeover(Closed, 57, true, 0)),
        (Client(GET), takeover(Closed, 57, true, 0)),
        (ServerEnd, takeover(Closed, 57, true, 0)),
    ]);
    // The client said so.
    check(&[
        (Client(b"GET / HTTP/1.0\r\n\r\n"), takeover(At(0), 0, true, 1)),
        (Server(OK), takeover(Closed, 40, true, 0)),
    ]);
    // A reply that only the end of the stream makes whole.
    check(&[
        (Client(GET), takeover(At(0), 0, true, 1)),
        (Server(b"HTTP/1.1 200 OK\r\n\r\nabc"), takeover(At(0), 0, false, 1)),
        (ServerEnd, takeover(Closed, 22, true, 0)),
    ]);
    // The server gives up without a word.
    check(&[(Client(GET), takeover(At(0), 0, true, 1)), (ServerEnd, takeover(Closed, 0, true, 0))]);
}

/// The client's FIN is no answer: the server still replies (RFC 9112 §9.6).
#[test]
fn a_half_closed_connection_is_resumed() {
    check(&[
        (Client(GET), takeover(At(0), 0, true, 1)),
        (ClientEnd, takeover(At(0), 0, true, 1)),
        (Server(OK), takeover(At(18), 40, true, 0)),
    ]);
}

/// A connection carried on where another one stood goes on as that one would have.
#[test]
fn carried_on_at_the_takeover() {
    let mut before = Player::new(Limits::default());
    for step in [Client(GET), Server(OK), Client(POST), Client(&GET[..4]), Server(&OK[..9])] {
        before.play(step);
    }
    let Some(Takeover { resume: At(instream), outstream_at, .. }) = before.connection.takeover()
    else {
        panic!("it can be resumed");
    };
    assert_eq!((instream, outstream_at), (18, 40));
    let mut after = Connection::starting_at(instream, outstream_at, Limits::default());
    after.instream(18, POST).for_each(|_| ());
    after.instream(60, GET).for_each(|_| ());
    after.outstream(40, OK).for_each(|_| ());
    assert_eq!(after.takeover(), Some(takeover(At(60), 80, true, 1)));
}
