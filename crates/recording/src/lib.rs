//! The format of a recording: records, one behind the other.
//!
//! ```text
//! recording   MAGIC, record…, zeros
//! record      length of what follows but the check (varint), head, payload, check (4 bytes)
//! ```
//!
//! A record's check covers it and, by its seed, everything in front of it. So whatever is lost, damaged,
//! or left over from another recording is found where it is, and the records in front of it are good. The
//! file is written through memory that is shared with the kernel: of a process that is killed all that it
//! had written is there, and at most its last record is not whole.
//!
//! What is in a record can be found again only by running the program: a call's arguments are not in it,
//! but for a digest by which a replay finds out that it makes another one.

#![no_std]
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What a recording begins with; the last byte is the format's version.
pub const MAGIC: [u8; 8] = *b"steadrc\x04";

/// Bytes of the longest record without its payload.
pub const MOST: usize = LENGTH + HEAD + CHECK;

/// Bytes of the longest length, head, and of a check.
const LENGTH: usize = 5;
const HEAD: usize = 64;
const CHECK: usize = 4;

/// What a record says, but for its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Head {
    /// A program begins: the first one, or one that was executed by the one in front of this record.
    Begin(Begin),
    /// A system call has been made.
    Call(Call),
    /// A signal was delivered. The payload is its `siginfo_t`, as far as it is not zeros.
    Signal(Signal),
    /// The processor's time stamp counter was read, and the number that tells the processor.
    Tsc(u64, u32),
    /// The program has asked its vDSO for the time.
    Time(Time),
    /// What follows is another thread's.
    Turn(Turn),
    /// How late it is, by CLOCK_MONOTONIC in nanoseconds: now and then while timers run.
    Now(u64),
    /// The process of this thread, which had not the turn, was killed some time before the call that follows.
    Killed(u16),
    /// It ends. The last record; of a program that was killed there is none.
    End(End),
}

/// How a program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// What the kernel gave it to begin with (`AT_RANDOM`).
    pub random: [u8; 16],
    /// Its first stack pointer, which says that its arguments and environment are the same.
    pub stack: u64,
    /// A hash of its instructions, and of its interpreter's.
    pub code: u64,
    /// Its number (`getpid`).
    pub pid: u32,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its number.
    pub number: u16,
    /// [`digest`] of its arguments.
    #[serde(with = "postcard::fixint::le")]
    pub digest: u16,
    /// What it returned.
    pub result: i64,
    /// What the payload is.
    pub payload: Payload,
}

/// What the payload of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// There is none.
    Nothing,
    /// What the kernel wrote to the program's memory, piece by piece.
    Written,
    /// The same as numbers: see [`write_words`].
    Words,
    /// There is none, but this is a hash of what the program gave to the kernel, or of what it got.
    Hash(#[serde(with = "postcard::fixint::le")] u32),
}

/// What the program was told of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// Which one it has asked: a number below [`Clocks::COUNT`].
    pub clock: u8,
    /// So much later it is than this one said last, in the clock's unit. See [`Clocks`].
    pub later: i64,
}

/// What a program was last told of the time by each clock: of the first ones, which the kernel numbers, in
/// nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Clocks([i64; Clocks::COUNT as usize]);

impl Clocks {
    /// There are so many.
    pub const COUNT: u8 = 18;
    /// That of `gettimeofday`, in microseconds.
    pub const OF_DAY: u8 = 16;
    /// That of `time`, in seconds.
    pub const SECONDS: u8 = 17;

    /// Nothing yet.
    pub const fn new() -> Clocks {
        Clocks([0; Clocks::COUNT as usize])
    }

    /// What there is to be recorded if a clock says this.
    pub fn tell(&mut self, clock: u8, value: i64) -> Time {
        let last = &mut self.0[usize::from(clock)];
        Time { clock, later: value.wrapping_sub(core::mem::replace(last, value)) }
    }

    /// What the clock has said. `None`: there is no such clock.
    pub fn told(&mut self, time: Time) -> Option<i64> {
        let last = self.0.get_mut(usize::from(time.clock))?;
        *last = last.wrapping_add(time.later);
        Some(*last)
    }
}

/// Where a signal was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    /// Instead of the call that the program was about to make, and made behind the handler; or else behind
    /// the call in front of this record.
    pub before: bool,
    /// So many calls behind that record of which there is none.
    pub behind: u32,
    /// What was blocked while it came, if a call said so for its duration (`sigsuspend`, `ppoll`).
    pub temporary: Option<u64>,
}

/// A thread goes on, of several that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Its number among the threads of its process: the lowest one that was free when it was made.
    pub thread: u16,
    /// Where the one before it gave the turn away.
    pub left: Left,
}

/// Where a turn was given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Left {
    /// At a call that was about to be made.
    Before,
    /// Behind the call in front of this record.
    Behind,
    /// Between two calls, where its process was killed.
    Killed,
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The program has ended itself.
    Exited {
        /// With this status.
        status: i32,
    },
    /// It made a call that is not recorded, and goes on without being recorded.
    Refused {
        /// The call.
        number: u16,
        /// Its arguments.
        args: [u64; 3],
    },
    /// A thread made no call for so long that the others could not be kept waiting any more.
    Stuck {
        /// Its number.
        thread: u16,
    },
    /// A process was killed in the midst of a call, and nobody knows what of it was done.
    Killed {
        /// The number of its thread that had the turn.
        thread: u16,
    },
    /// What is to be recorded could not be written.
    Unwritten {
        /// The reason.
        errno: i32,
    },
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it says.
    pub head: Head,
    /// And the bytes that belong to it.
    pub payload: &'a [u8],
}

/// A place between two records: how far a recording goes, and what the next check begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes in front of it.
    pub at: u64,
    /// What the next record's check begins with.
    pub seed: u64,
}

/// What is at a place instead of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file does not begin as recordings do.
    #[error("it is no recording, or one of another version")]
    Magic,
    /// A record begins, and is not there to its end.
    #[error("a record is cut off")]
    Short,
    /// It is not what was written.
    #[error("a record is damaged")]
    Check,
}

impl Place {
    /// Where the first record is, behind [`MAGIC`].
    pub const FIRST: Place = Place { at: MAGIC.len() as u64, seed: 0 };

    /// Writes a record to `out`; `payload` puts its bytes where it is told and says how many they are: about as
    /// many as `expected`, or else it is asked again. The place behind it. `None`: there is no room for it, which
    /// `payload` may say as well.
    pub fn write(
        self,
        out: &mut [u8],
        head: &Head,
        expected: usize,
        mut payload: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<Place> {
        let room = out.len().checked_sub(MOST)?;
        let mut body = |begin: usize| {
            let from = begin + write_head(head, &mut out[begin..]);
            Some(from + payload(&mut out[from..from + room])? - begin)
        };
        let mut begin = number_len(expected as u64).min(LENGTH);
        let mut len = body(begin)?;
        if number_len(len as u64) > begin {
            begin = number_len(len as u64);
            len = body(begin)?;
        }
        let end = begin + len;
        let seed = xxh3_64_with_seed(&out[begin..end], self.seed);
        out[end..end + CHECK].copy_from_slice(&(seed as u32).to_le_bytes());
        // Last: without it there is no record.
        write_number(len as u64, &mut out[..begin]);
        Some(Place { at: self.at + (end + CHECK) as u64, seed })
    }

    /// Reads the record that `bytes` begins with, and the place behind it. `None`: there is none any more.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(self, bytes: &[u8]) -> Result<Option<(Record<'_>, Place)>, Damage> {
        if bytes.first().is_none_or(|&byte| byte == 0) {
            return Ok(None);
        }
        let cut_off = |error| match error {
            postcard::Error::DeserializeUnexpectedEnd => Damage::Short,
            _ => Damage::Check,
        };
        let (body, rest): (u32, _) = postcard::take_from_bytes(bytes).map_err(cut_off)?;
        let (body, begin) = (body as usize, bytes.len() - rest.len());
        if rest.len() < body + CHECK {
            return Err(Damage::Short);
        }
        let (body, rest) = rest.split_at(body);
        let seed = xxh3_64_with_seed(body, self.seed);
        if rest[..CHECK] != (seed as u32).to_le_bytes() {
            return Err(Damage::Check);
        }
        let (head, payload) = postcard::take_from_bytes(body).map_err(|_| Damage::Check)?;
        let at = self.at + (begin + body.len() + CHECK) as u64;
        Ok(Some((Record { head, payload }, Place { at, seed })))
    }
}

/// Bytes of a number as postcard writes it.
const fn number_len(number: u64) -> usize {
    match number {
        0 => 1,
        _ => (number.ilog2() / 7 + 1) as usize,
    }
}

/// Writes a number as postcard does, to all of `out`.
fn write_number(mut number: u64, out: &mut [u8]) {
    const MORE: u8 = 0x80;
    let (last, front) = out.split_last_mut().expect("a number has a byte at least");
    for byte in front {
        *byte = number as u8 | MORE;
        number >>= 7;
    }
    *last = number as u8;
}

/// Writes a head as postcard does; bytes of it. Calls, of which there are more than of everything else, by
/// hand: it takes a third of the time.
fn write_head(head: &Head, out: &mut [u8]) -> usize {
    let Head::Call(Call { number, digest, result, payload }) = *head else {
        return postcard::to_slice(head, out).expect("the longest head has room").len();
    };
    /// Of the head, and of the payload.
    const CALL: u8 = 1;
    let (kind, hash) = match payload {
        Payload::Nothing => (0, None),
        Payload::Written => (1, None),
        Payload::Words => (2, None),
        Payload::Hash(hash) => (3, Some(hash)),
    };
    let put = |number: u64, out: &mut [u8]| {
        let len = number_len(number);
        write_number(number, &mut out[..len]);
        len
    };
    out[0] = CALL;
    let mut at = 1;
    at += put(number.into(), &mut out[at..]);
    out[at..at + 2].copy_from_slice(&digest.to_le_bytes());
    at += 2;
    at += put((result << 1 ^ result >> 63).cast_unsigned(), &mut out[at..]);
    out[at] = kind;
    at += 1;
    if let Some(hash) = hash {
        out[at..at + 4].copy_from_slice(&hash.to_le_bytes());
        at += 4;
    }
    at
}

/// What two calls, or what two hashes are of, are told apart by.
#[derive(Clone, Copy, Debug)]
pub struct Hasher(u64);

impl Hasher {
    /// Of nothing yet.
    pub const fn new() -> Hasher {
        Hasher(0)
    }

    /// And of this.
    pub fn add(&mut self, bytes: &[u8]) {
        // Another seed for each piece would cost as much as hashing some hundred bytes.
        self.0 = (self.0.rotate_left(32) ^ xxh3_64(bytes)).wrapping_mul(ODD[0]);
    }

    /// Of everything that was added, in its pieces.
    pub const fn hash(self) -> u64 {
        self.0
    }
}

impl Default for Hasher {
    fn default() -> Hasher {
        Hasher::new()
    }
}

/// Numbers without a pattern: digits of the golden ratio, and of roots of small primes.
const ODD: [u64; 6] = [
    0x9e37_79b9_7f4a_7c15,
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
];

/// By which a replay finds out that it makes another call than was recorded, once in 65,536 times too late.
/// Six arguments at most. (Multilinear hashing, as in Lemire and Kaser's "Strongly universal string hashing is
/// fast", 2014: what is hashed is short.)
pub fn digest(args: &[usize]) -> u16 {
    let sum = args
        .iter()
        .zip(ODD)
        .fold(0u64, |sum, (&arg, odd)| sum.wrapping_add((arg as u64).wrapping_mul(odd)));
    (sum >> 48) as u16
}

/// Words of 32 bits are written four by four: a byte that says how long each of them is, two bits for each, and then
/// as much of them as is not zeros. Most of what the kernel writes in structures is zeros and small numbers.
const GROUP: usize = 4;
/// Bytes of a word, by those bits.
const LENGTHS: [usize; 4] = [0, 1, 2, 4];

/// Writes `bytes` so to the beginning of `out`, and returns how many bytes that takes. `None`: they are no words, or
/// there is no room for the longest ones.
pub fn write_words(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    let (groups, rest) = words.as_chunks::<GROUP>();
    let mut last = [[0; 4]; GROUP];
    last[..rest.len()].copy_from_slice(rest);
    let last = if rest.is_empty() { None } else { Some(&last) };
    let mut at = 0;
    for group in groups.iter().chain(last) {
        at += write_group(group, out.get_mut(at..)?.first_chunk_mut()?);
    }
    Some(at)
}

fn write_group(group: &[[u8; 4]; GROUP], out: &mut [u8; 1 + 4 * GROUP]) -> usize {
    let (mut end, mut lengths) = (1, 0);
    for (i, word) in group.iter().enumerate() {
        let number = u32::from_le_bytes(*word);
        let length =
            usize::from(number > 0) + usize::from(number > 0xff) + usize::from(number > 0xffff);
        // All of it; what follows overwrites what is too much.
        out[end..end + 4].copy_from_slice(word);
        end += LENGTHS[length];
        lengths |= (length as u8) << (2 * i);
    }
    out[0] = lengths;
    end
}

/// Reads what was written so from the beginning of `words`, until `bytes` are full. What is behind it; `None`:
/// there is less.
pub fn read_words<'a>(mut words: &'a [u8], bytes: &mut [u8]) -> Option<&'a [u8]> {
    let (to, []) = bytes.as_chunks_mut::<4>() else { return None };
    for group in to.chunks_mut(GROUP) {
        let (&lengths, mut rest) = words.split_first()?;
        for (i, word) in group.iter_mut().enumerate() {
            let (number, behind) =
                rest.split_at_checked(LENGTHS[usize::from(lengths >> (2 * i) & 3)])?;
            *word = [0; 4];
            word[..number.len()].copy_from_slice(number);
            rest = behind;
        }
        words = rest;
    }
    Some(words)
}

/// The records of a whole recording, and in the end what keeps it from going on.
pub struct Records<'a> {
    bytes: &'a [u8],
    place: Place,
    ended: bool,
}

impl<'a> Records<'a> {
    /// # Errors
    /// [`Damage::Magic`].
    pub fn of(bytes: &'a [u8]) -> Result<Records<'a>, Damage> {
        match bytes.strip_prefix(&MAGIC) {
            Some(bytes) => Ok(Records { bytes, place: Place::FIRST, ended: false }),
            None => Err(Damage::Magic),
        }
    }

    /// How far they have been read.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Damage>;

    fn next(&mut self) -> Option<Result<Record<'a>, Damage>> {
        if self.ended {
            return None;
        }
        match self.place.read(self.bytes).transpose()? {
            Ok((record, place)) => {
                self.bytes = &self.bytes[(place.at - self.place.at) as usize..];
                self.place = place;
                Some(Ok(record))
            }
            Err(damage) => {
                self.ended = true;
                Some(Err(damage))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;
    use std::{format, vec};

    use proptest::prelude::*;

    use super::*;

    /// A recording of these, and where each of its records begins.
    fn written(records: &[(Head, Vec<u8>)]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut place) = (MAGIC.to_vec(), Place::FIRST);
        let mut begins = vec![];
        for (head, payload) in records {
            let from = bytes.len();
            begins.push(from);
            bytes.resize(from + MOST + payload.len(), 0);
            let put = |out: &mut [u8]| {
                out[..payload.len()].copy_from_slice(payload);
                Some(payload.len())
            };
            let short = &mut bytes[from..from + MOST - 1].to_vec();
            let expected = if from % 2 == 0 { payload.len() } else { from * 64 };
            assert_eq!(place.write(short, head, 0, put), None, "there is no room for it");
            place = place.write(&mut bytes[from..], head, expected, put).unwrap();
            bytes.truncate(place.at as usize);
        }
        (bytes, begins)
    }

    fn read(bytes: &[u8]) -> (Vec<(Head, Vec<u8>)>, Option<Damage>) {
        let (mut records, mut damage) = (vec![], None);
        for record in Records::of(bytes).unwrap() {
            match record {
                Ok(Record { head, payload }) => records.push((head, payload.to_vec())),
                Err(found) => damage = Some(found),
            }
        }
        (records, damage)
    }

    fn heads() -> impl Strategy<Value = Head> {
        let payloads = prop_oneof![
            Just(Payload::Nothing),
            Just(Payload::Written),
            Just(Payload::Words),
            any::<u32>().prop_map(Payload::Hash)
        ];
        let calls = (any::<u16>(), any::<u16>(), any::<i64>(), payloads);
        prop_oneof![
            (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
                |(random, stack, code, pid)| Head::Begin(Begin { random, stack, code, pid })
            ),
            calls.prop_map(|(number, digest, result, payload)| {
                Head::Call(Call { number, digest, result, payload })
            }),
            (any::<bool>(), any::<u32>(), any::<Option<u64>>()).prop_map(
                |(before, behind, temporary)| Head::Signal(Signal { before, behind, temporary })
            ),
            (any::<u64>(), any::<u32>()).prop_map(|(tsc, processor)| Head::Tsc(tsc, processor)),
            (any::<u8>(), any::<i64>())
                .prop_map(|(clock, later)| Head::Time(Time { clock, later })),
            (any::<u16>(), prop_oneof![Just(Left::Before), Just(Left::Behind), Just(Left::Killed)])
                .prop_map(|(thread, left)| Head::Turn(Turn { thread, left })),
            any::<u64>().prop_map(Head::Now),
            any::<u16>().prop_map(Head::Killed),
            any::<i32>().prop_map(|status| Head::End(End::Exited { status })),
            any::<u16>().prop_map(|thread| Head::End(End::Stuck { thread })),
            any::<u16>().prop_map(|thread| Head::End(End::Killed { thread })),
            (any::<u16>(), any::<[u64; 3]>())
                .prop_map(|(number, args)| Head::End(End::Refused { number, args })),
            any::<i32>().prop_map(|errno| Head::End(End::Unwritten { errno })),
        ]
    }

    fn recordings() -> impl Strategy<Value = Vec<(Head, Vec<u8>)>> {
        let payload = proptest::collection::vec(any::<u8>(), 0..300);
        proptest::collection::vec((heads(), payload), 1..20)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(records in recordings(), zeros in 0usize..100) {
            let (mut bytes, _) = written(&records);
            bytes.resize(bytes.len() + zeros, 0);
            prop_assert_eq!(read(&bytes), (records, None));
        }

        #[test]
        fn a_flipped_bit_is_found_where_it_is(
            records in recordings(), at in any::<prop::sample::Index>(), bit in 0u8..8
        ) {
            let (mut bytes, begins) = written(&records);
            let at = MAGIC.len() + at.index(bytes.len() - MAGIC.len());
            bytes[at] ^= 1 << bit;
            let whole = begins.iter().filter(|&&begin| begin <= at).count() - 1;
            let (got, damage) = read(&bytes);
            prop_assert_eq!(&got[..], &records[..whole]);
            // A length of nothing is where a recording ends.
            prop_assert!(damage.is_some() || bytes[begins[whole]] == 0);
        }

        #[test]
        fn a_cut_is_found_where_it_is(records in recordings(), at in any::<prop::sample::Index>()) {
            let (bytes, begins) = written(&records);
            let at = MAGIC.len() + at.index(bytes.len() - MAGIC.len());
            let whole = begins.iter().filter(|&&begin| begin <= at).count() - 1;
            let damage = (!begins.contains(&at)).then_some(Damage::Short);
            prop_assert_eq!(read(&bytes[..at]), (records[..whole].to_vec(), damage));
            // The rest of the file may be there, and empty. What was not written is not read, but for zeros
            // at the end of a record that was to end with them.
            let mut torn = bytes[..at].to_vec();
            torn.resize(bytes.len(), 0);
            let (got, _) = read(&torn);
            prop_assert!(got.len() >= whole && got[..] == records[..got.len()]);
        }
    }

    proptest! {
        #[test]
        fn heads_are_as_postcard_has_them(head in heads()) {
            let (mut by_hand, mut by_postcard) = ([0; HEAD], [0; HEAD]);
            let len = write_head(&head, &mut by_hand);
            let expected = postcard::to_slice(&head, &mut by_postcard).unwrap();
            prop_assert_eq!(&by_hand[..len], &*expected);
        }

        #[test]
        fn words_are_read_as_they_were_written(
            words in proptest::collection::vec(prop_oneof![0..200u32, any::<u16>().prop_map(u32::from), any::<u32>()], 0..30)
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut out = vec![7; words.len().div_ceil(4) * 17];
            let len = write_words(&bytes, &mut out).unwrap();
            let too_short = &mut out.clone()[..len.saturating_sub(1)];
            prop_assert!(words.is_empty() || write_words(&bytes, too_short).is_none());
            out.truncate(len);
            out.push(7);
            let mut read = vec![1; bytes.len()];
            prop_assert_eq!(read_words(&out, &mut read), Some(&[7][..]));
            prop_assert_eq!(&read, &bytes);
            let cut = &out[..len.saturating_sub(1)];
            prop_assert!(words.is_empty() || read_words(cut, &mut read).is_none());
        }

        #[test]
        fn a_digest_is_of_every_argument(
            args in any::<[usize; 6]>(), at in 0usize..6, other in any::<usize>()
        ) {
            let mut changed = args;
            changed[at] ^= 1 << (other % 64);
            prop_assert_ne!(digest(&args), digest(&changed));
        }
    }

    #[test]
    fn clocks_are_told_what_they_have_said() {
        let (mut writes, mut reads) = (Clocks::new(), Clocks::new());
        let said = [(1, 5_000_000_000), (0, i64::MAX), (1, 5_000_000_900), (0, i64::MIN), (17, 3)];
        for (clock, value) in said {
            let time = writes.tell(clock, value);
            assert_eq!(reads.told(time), Some(value));
        }
        assert_eq!(writes.tell(1, 5_000_001_000), Time { clock: 1, later: 100 });
        assert_eq!(reads.told(Time { clock: Clocks::COUNT, later: 0 }), None);
    }

    /// The same record in another place is another one.
    #[test]
    fn what_is_left_over_is_not_read() {
        let call = |result| {
            let payload = Payload::Nothing;
            (Head::Call(Call { number: 0, digest: 7, result, payload }), vec![])
        };
        let (first, begins) = written(&[call(1), call(2), call(3)]);
        let (second, _) = written(&[call(4), call(5)]);
        let mixed = [&second[..], &first[begins[2]..]].concat();
        assert_eq!(read(&mixed), (vec![call(4), call(5)], Some(Damage::Check)));
    }

    #[test]
    fn a_small_call_is_a_small_record() {
        let call = Call { number: 232, digest: 9, result: 1, payload: Payload::Nothing };
        let (bytes, _) = written(&[(Head::Call(call), vec![])]);
        assert!(bytes.len() - MAGIC.len() <= 12, "{}", bytes.len());
        let time = Head::Time(Time { clock: 1, later: 4_000 });
        let (bytes, _) = written(&[(time, vec![])]);
        assert!(bytes.len() - MAGIC.len() <= 10, "{}", bytes.len());
        assert_eq!(Records::of(b"steadrc\x03").err(), Some(Damage::Magic));
    }

    #[test]
    fn every_head_has_room() {
        let longest = [
            Head::Begin(Begin {
                random: [255; 16],
                stack: u64::MAX,
                code: u64::MAX,
                pid: u32::MAX,
            }),
            Head::Call(Call {
                number: u16::MAX,
                digest: u16::MAX,
                result: i64::MIN,
                payload: Payload::Hash(u32::MAX),
            }),
            Head::End(End::Refused { number: u16::MAX, args: [u64::MAX; 3] }),
        ];
        for head in longest {
            let mut bytes = [0; HEAD];
            assert!(postcard::to_slice(&head, &mut bytes).is_ok(), "{}", format!("{head:?}"));
        }
    }
}
