use std::time::Duration;

use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::packet::Packet;
use crate::{Channel, Rejected};

const PROOF: usize = LENGTH + TAG;

fn psk() -> Psk {
    Psk::from_bytes([1; 32])
}

/// Node "a" is in its 10th life, every other one in its 20th.
fn identity(name: &str) -> Identity {
    let (peer, incarnation) = if name == "a" { ("b", 10) } else { ("a", 20) };
    let text = str::to_owned;
    Identity { cluster: text("files"), name: text(name), peer: text(peer), incarnation }
}

fn dial(name: &str) -> Stream {
    Stream::dial(&psk(), &identity(name), &Rng::system())
}

fn answer(name: &str) -> Stream {
    Stream::answer(&psk(), &identity(name), &Rng::system())
}

/// Takes up to `most` bytes of what a side has to send.
fn take(from: &mut Stream, most: usize) -> Vec<u8> {
    let count = from.to_send().len().min(most);
    let bytes = from.to_send()[..count].to_vec();
    from.sent(count);
    bytes
}

fn take_all(from: &mut Stream) -> Vec<u8> {
    take(from, usize::MAX)
}

/// What a side makes of these bytes.
fn hear(to: &mut Stream, bytes: &[u8]) -> (Vec<u8>, Result<(), StreamError>) {
    let mut plaintext = Vec::new();
    let outcome = to.received(bytes, &mut plaintext);
    (plaintext, outcome)
}

/// Carries all that `from` has to send and returns what it says.
#[track_caller]
fn carry(from: &mut Stream, to: &mut Stream) -> Vec<u8> {
    let (plaintext, outcome) = hear(to, &take_all(from));
    assert_eq!(outcome, Ok(()));
    plaintext
}

/// "a" has dialled, "b" has answered.
fn established() -> (Stream, Stream) {
    let (mut a, mut b) = (dial("a"), answer("b"));
    carry(&mut a, &mut b);
    carry(&mut b, &mut a);
    carry(&mut a, &mut b);
    assert!(a.established() && b.established());
    (a, b)
}

/// The messages, each in a frame of its own.
fn frames(from: &mut Stream, messages: &[&[u8]]) -> Vec<Vec<u8>> {
    let seal = |message: &&[u8]| {
        from.write(message);
        take_all(from)
    };
    messages.iter().map(seal).collect()
}

/// Noise message 1 or 2, as it stands behind preamble and length.
fn handshake(noise: &[u8]) -> Vec<u8> {
    let mut bytes = preamble(&identity("a")).to_vec();
    push_length(noise.len(), &mut bytes);
    bytes.extend_from_slice(noise);
    bytes
}

/// Says why these bytes are refused, however they are cut. The refused side says nothing, now or
/// later, and an error is final.
#[track_caller]
fn refused(make: impl Fn() -> Stream, bytes: &[u8]) -> StreamError {
    let [whole, single] = [bytes.len(), 1].map(|size| {
        let mut stream = make();
        // What a dialler has said before it heard anything.
        take_all(&mut stream);
        let mut pieces = bytes.chunks(size);
        let error = pieces.find_map(|piece| hear(&mut stream, piece).1.err());
        let error = error.expect("it should be refused");
        assert!(!stream.established());
        assert_eq!(stream.peer_incarnation(), None);
        assert_eq!(hear(&mut stream, &[]), (vec![], Err(error.clone())));
        assert_eq!(hear(&mut stream, bytes), (vec![], Err(error.clone())));
        assert_eq!(stream.to_send(), [0; 0]);
        error
    });
    assert_eq!(whole, single);
    whole
}

#[test]
fn each_side_is_established_when_the_peer_has_proved_that_it_lives() {
    let (mut a, mut b) = (dial("a"), answer("b"));
    assert!(b.to_send().is_empty(), "the side that answers is silent");
    let tag = ClusterTag::of("files").bytes();
    assert_eq!(a.to_send()[..15], [b"SFst\x01", &tag[..], &[0, 62]].concat(), "a golden head");
    assert_eq!(carry(&mut a, &mut b), b"");
    assert_eq!((a.peer_incarnation(), b.peer_incarnation()), (None, None));
    assert_eq!(carry(&mut b, &mut a), b"");
    assert_eq!((a.peer_incarnation(), b.peer_incarnation()), (Some(20), None));
    assert!(!b.established(), "message 1 may be a recorded one");
    // The proof and the first messages may come together.
    a.write(b"there");
    assert_eq!(carry(&mut a, &mut b), b"there");
    assert_eq!((a.peer_incarnation(), b.peer_incarnation()), (Some(20), Some(10)));
    assert!(a.established() && b.established());
    b.write(b"and ");
    b.write(b"");
    b.write(b"back");
    assert_eq!(b.to_send().len(), 2 * (LENGTH + TAG) + 8, "nothing is not written");
    assert_eq!(carry(&mut b, &mut a), b"and back");
}

#[test]
fn bulk_takes_as_few_messages_as_possible_and_is_seldom_moved() {
    let (mut a, mut b) = established();
    let messages = 64;
    let length = (messages - 1) * PLAINTEXT_MAX + 1;
    let written: Vec<u8> = (0..length).map(|i| ((i * i) >> 8) as u8).collect();
    for turn in 0..2 {
        let (from, to) = if turn == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        from.write(&written);
        assert_eq!(from.to_send().len(), length + messages * (LENGTH + TAG));
        let (mut received, mut moved) = (Vec::new(), 0);
        while !from.to_send().is_empty() {
            let piece = take(from, 1000);
            assert_eq!(to.received(&piece, &mut received), Ok(()));
            moved += usize::from(from.sent == 0);
        }
        assert!(received == written, "{} bytes of {length}", received.len());
        assert!(moved <= 32, "moved {moved} times");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Who writes, who sends and how much of it arrives at once makes no difference.
    #[test]
    fn any_fragmentation_carries_the_same_bytes(
        steps in prop::collection::vec((any::<bool>(), 0usize..100_000, 1usize..50_000), 1..40),
        handshake_piece in 1usize..100,
    ) {
        let mut ends = [dial("a"), answer("b")];
        let mut written = [Vec::new(), Vec::new()];
        let mut received = [Vec::new(), Vec::new()];
        // Carries up to so many bytes from one side to the other.
        let carry = |ends: &mut [Stream; 2], from: usize, most, received: &mut [Vec<u8>; 2]| {
            let piece = take(&mut ends[from], most);
            assert_eq!(ends[1 - from].received(&piece, &mut received[1 - from]), Ok(()));
            piece.len()
        };
        while !ends.iter().all(Stream::established) {
            let from = usize::from(ends[0].to_send().is_empty());
            prop_assert!(carry(&mut ends, from, handshake_piece, &mut received) > 0);
        }
        for (index, &(second, length, piece)) in steps.iter().enumerate() {
            let from = usize::from(second);
            // Short messages are the usual ones.
            let length = if index % 4 == 0 { length } else { length % 400 };
            let bytes: Vec<u8> = (0..length).map(|i| (i + index) as u8).collect();
            ends[from].write(&bytes);
            written[from].extend_from_slice(&bytes);
            carry(&mut ends, from, piece, &mut received);
            carry(&mut ends, 1 - from, piece / 2, &mut received);
            prop_assert!(written[0].starts_with(&received[1]));
            prop_assert!(written[1].starts_with(&received[0]));
        }
        for from in [0, 1] {
            while carry(&mut ends, from, 7777, &mut received) > 0 {}
        }
        prop_assert!(written[0] == received[1]);
        prop_assert!(written[1] == received[0]);
    }

    /// Whatever a stranger sends, with or without the right beginning: no panic, no answer, and no
    /// more is kept than one message of a handshake.
    #[test]
    fn garbage_is_neither_answered_nor_kept(
        known in 0usize..=PREAMBLE + LENGTH,
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        piece in 1usize..500,
        asks: bool,
    ) {
        let mut stream = if asks { dial("b") } else { answer("b") };
        take_all(&mut stream);
        let mut bytes = handshake(&[0; MESSAGE_MAX])[..known].to_vec();
        bytes.extend_from_slice(&noise);
        for piece in bytes.chunks(piece) {
            let (plaintext, outcome) = hear(&mut stream, piece);
            prop_assert_eq!(plaintext, b"");
            prop_assert!(stream.partial.len() < PREAMBLE + LENGTH + MESSAGE_MAX);
            prop_assert!(outcome.is_ok() || stream.partial.capacity() == 0);
        }
        prop_assert!(stream.to_send().is_empty());
        prop_assert!(!stream.established());
        prop_assert!(bytes.len() < PREAMBLE + LENGTH + MESSAGE_MAX || stream.partial.is_empty());
    }
}

#[test]
fn another_key_version_cluster_or_name_is_reported_as_such() {
    let asked =
        |psk: &Psk, identity: &Identity| take_all(&mut Stream::dial(psk, identity, &Rng::system()));
    let other_key = Psk::from_bytes([9; 32]);
    assert_eq!(refused(|| answer("b"), &asked(&other_key, &identity("a"))), StreamError::Key);

    let other_cluster = Identity { cluster: "mail".to_owned(), ..identity("a") };
    assert_eq!(refused(|| answer("b"), &asked(&psk(), &other_cluster)), StreamError::Cluster);

    let unknown = Identity { name: "c".to_owned(), peer: "b".to_owned(), ..identity("a") };
    let name = StreamError::Name { theirs: "c".to_owned() };
    assert_eq!(refused(|| answer("b"), &asked(&psk(), &unknown)), name);

    let mut other_version = take_all(&mut dial("a"));
    other_version[4] = 2;
    let version = StreamError::Version { theirs: 2 };
    assert_eq!(refused(|| answer("b"), &other_version), version);
    assert_eq!(refused(|| dial("b"), &other_version[..5]), version);
    assert!(version.to_string().contains("version 2 "), "{version}");
}

/// The preamble only names a stranger. What decides is the handshake, which has the cluster in it.
#[test]
fn a_preamble_that_claims_our_cluster_does_not_help() {
    let other_cluster = Identity { cluster: "mail".to_owned(), ..identity("a") };
    let mut asked = take_all(&mut Stream::dial(&psk(), &other_cluster, &Rng::system()));
    asked[..PREAMBLE].copy_from_slice(&preamble(&identity("a")));
    assert_eq!(refused(|| answer("b"), &asked), StreamError::Key);
}

#[test]
fn a_node_that_is_not_the_one_dialled_is_refused() {
    // Its own peer is "a", and it has the key.
    let (mut a, mut c) = (dial("a"), answer("c"));
    carry(&mut a, &mut c);
    let (_, outcome) = hear(&mut a, &take_all(&mut c));
    assert_eq!(outcome, Err(StreamError::Name { theirs: "c".to_owned() }));
    assert_eq!((a.established(), a.to_send()), (false, &[][..]), "it gets no proof");
}

#[test]
fn what_is_reflected_is_refused() {
    let asked = take_all(&mut dial("a"));
    let name = StreamError::Name { theirs: "a".to_owned() };
    assert_eq!(refused(|| answer("a"), &asked), name);
    let mut a = dial("a");
    let asked = take_all(&mut a);
    assert_eq!(hear(&mut a, &asked).1, Err(StreamError::Key));
    let (mut a, _) = established();
    let sealed = frames(&mut a, &[b"hello"]).remove(0);
    assert_eq!(hear(&mut a, &sealed), (vec![], Err(StreamError::Forged)));
}

/// A conversation of which one bit may be changed, in what `from` sends: who is established at its
/// end, and what was received.
fn converse(flip: Option<(usize, usize, u8)>) -> ([bool; 2], [Vec<u8>; 2]) {
    let mut ends = [dial("a"), answer("b")];
    let (mut received, mut carried) = ([Vec::new(), Vec::new()], [0, 0]);
    let mut carry = |ends: &mut [Stream; 2], from: usize| {
        let mut bytes = take_all(&mut ends[from]);
        if let Some((_, at, mask)) = flip.filter(|flip| flip.0 == from)
            && let Some(at) = at.checked_sub(carried[from])
            && let Some(byte) = bytes.get_mut(at)
        {
            *byte ^= mask;
        }
        carried[from] += bytes.len();
        // An error shows in that the side is no longer established.
        let _ = ends[1 - from].received(&bytes, &mut received[1 - from]);
    };
    for from in [0, 1, 0] {
        carry(&mut ends, from);
    }
    // The last message completes any that a changed length has made longer.
    for message in [&b"one"[..], b"two", &[3; NOISE_MAX]] {
        for from in [0, 1] {
            if ends[from].established() {
                ends[from].write(message);
                carry(&mut ends, from);
            }
        }
    }
    (ends.map(|end| end.established()), received)
}

#[test]
fn a_bit_flipped_anywhere_is_noticed() {
    let all = [&b"onetwo"[..], &[3; NOISE_MAX]].concat();
    let (established, received) = converse(None);
    assert_eq!(established, [true, true]);
    assert!(received == [all.clone(), all.clone()]);
    let message_1 = take_all(&mut dial("a")).len();
    // Handshake and the two short messages.
    let lengths = [message_1 + PROOF + 2 * (LENGTH + TAG + 3), message_1 + 2 * (LENGTH + TAG + 3)];
    for (from, length) in lengths.into_iter().enumerate() {
        for (at, bit) in (0..length).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let (established, received) = converse(Some((from, at, 1 << bit)));
            let to = 1 - from;
            assert!(!established[to], "bit {bit} of byte {at} from side {from}");
            assert!(received[to].len() < 6 && all.starts_with(&received[to]));
        }
    }
}

#[test]
fn a_message_that_is_repeated_moved_or_missing_ends_the_stream() {
    // Which of the messages arrive, and what is read before the first wrong one.
    for (order, read) in [
        (&[0, 0][..], "one"),
        (&[1, 0, 2], ""),
        (&[0, 2], "one"),
        (&[0, 1, 0], "onetwo"),
        (&[2], ""),
    ] {
        let (mut a, mut b) = established();
        let sealed = frames(&mut a, &[b"one", b"two", b"three"]);
        let bytes: Vec<u8> = order.iter().flat_map(|&index| sealed[index].clone()).collect();
        let (plaintext, outcome) = hear(&mut b, &bytes);
        assert_eq!((plaintext, outcome), (read.into(), Err(StreamError::Forged)), "{order:?}");
        assert!(!b.established());
        let (plaintext, outcome) = hear(&mut b, &sealed[order.len() - 1]);
        assert_eq!((plaintext, outcome), (vec![], Err(StreamError::Forged)), "an error is final");
    }
}

#[test]
fn a_recorded_conversation_establishes_nothing() {
    let (mut a, mut b) = (dial("a"), answer("b"));
    let asked = take_all(&mut a);
    assert_eq!(hear(&mut b, &asked).1, Ok(()));
    let answered = take_all(&mut b);
    assert_eq!(hear(&mut a, &answered).1, Ok(()));
    a.write(b"transfer");
    let proved = take_all(&mut a);
    assert_eq!(hear(&mut b, &proved), (b"transfer".to_vec(), Ok(())));

    let mut again = answer("b");
    assert_eq!(hear(&mut again, &asked).1, Ok(()));
    assert!(!again.established());
    assert_ne!(again.to_send(), answered, "its keys are new");
    assert_eq!(hear(&mut again, &proved), (vec![], Err(StreamError::Forged)));
    assert_eq!(refused(|| dial("a"), &answered), StreamError::Key);
}

#[test]
fn a_handshake_cut_off_anywhere_waits_for_the_rest() {
    let (mut a, mut b) = (dial("a"), answer("b"));
    for turn in 0..3 {
        let (from, to) = if turn % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let bytes = take_all(from);
        let (last, front) = bytes.split_last().unwrap();
        for byte in front {
            assert_eq!(hear(to, &[*byte]), (vec![], Ok(())));
            assert!(!to.established());
            assert!(to.to_send().is_empty());
        }
        assert_eq!(hear(to, &[*last]), (vec![], Ok(())));
    }
    assert!(a.established() && b.established());
}

#[test]
fn who_speaks_before_the_handshake_is_over_is_refused() {
    // A message of an established stream, as the first thing or in the place of message 2.
    let (mut a, _) = established();
    let sealed = frames(&mut a, &[b"hello"]).remove(0);
    assert_eq!(refused(|| answer("b"), &sealed), StreamError::Garbage);
    assert_eq!(refused(|| dial("b"), &sealed), StreamError::Garbage);
    // Behind message 1, before message 2 can have been read. The answer is not sent any more.
    let asked = take_all(&mut dial("a"));
    for (behind, error) in [
        (&[0; PROOF][..], StreamError::Garbage),
        (&[&[0, 16][..], &[0; TAG]].concat(), StreamError::Forged),
        (&[0, 17], StreamError::TooLong),
        (&[255, 255, 0], StreamError::TooLong),
        (&asked, StreamError::TooLong),
    ] {
        let mut b = answer("b");
        let bytes = [&asked[..], behind].concat();
        assert_eq!(hear(&mut b, &bytes), (vec![], Err(error.clone())));
        assert_eq!((b.established(), b.to_send()), (false, &[][..]), "{error}");
    }
}

#[test]
#[should_panic(expected = "not established")]
fn writing_before_the_handshake_is_over_is_our_bug() {
    dial("a").write(b"hello");
}

#[test]
fn what_cannot_be_a_handshake_is_refused_at_its_first_wrong_byte() {
    for make in [answer, dial] {
        let due = handshake(&[0; MESSAGE_MAX]);
        assert_eq!(refused(|| make("b"), b"G"), StreamError::Garbage);
        assert_eq!(
            refused(|| make("b"), &[&due[..PREAMBLE], &[0, 47]].concat()),
            StreamError::Garbage
        );
        let too_long = (MESSAGE_MAX as u16 + 1).to_be_bytes();
        assert_eq!(
            refused(|| make("b"), &[&due[..PREAMBLE], &too_long].concat()),
            StreamError::TooLong
        );
        assert_eq!(refused(|| make("b"), &due), StreamError::Key);
    }
}

#[test]
fn a_datagram_is_no_message_of_a_stream_nor_the_other_way_round() {
    let channel = |name| Channel::new(psk(), identity(name), Rng::system());
    let now = Duration::ZERO;
    let cluster = ClusterTag::of("files");

    let (mut a, mut b) = (channel("a"), channel("b"));
    let initiation = a.poll(now).remove(0);
    let Ok(Packet::Initiation { noise }) = Packet::parse(&initiation, cluster) else { panic!() };
    assert_eq!(refused(|| answer("b"), &handshake(noise)), StreamError::Key);
    assert_eq!(refused(|| answer("b"), &initiation), StreamError::Garbage);
    // Under the channel's own prologue the same message is a good one.
    let response = b.on_datagram(&initiation, now).replies.remove(0);
    let Ok(Packet::Response { noise, .. }) = Packet::parse(&response, cluster) else { panic!() };
    assert_eq!(refused(|| dial("a"), &handshake(noise)), StreamError::Key);

    let asked = take_all(&mut dial("a"));
    let initiation = Packet::Initiation { noise: &asked[PREAMBLE + LENGTH..] }.emit(cluster);
    let rejected = channel("b").on_datagram(&initiation, now).rejected;
    assert_eq!(rejected, Some(Rejected::Key));
    assert_eq!(channel("b").on_datagram(&asked, now).rejected, Some(Rejected::Garbage));
}
