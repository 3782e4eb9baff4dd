//! Any records come out as they went in, however the stream is cut; any bytes are read without a
//! panic, and never as something that was not written.

use proptest::prelude::*;
use replies::codec::{FRAME_MAX, FlowName, PAYLOAD_MAX, Reader, Record, Writer};

fn any_flow() -> impl Strategy<Value = FlowName> {
    any::<([u8; 16], [u8; 16], u16, u16)>().prop_map(
        |(client, server, client_port, server_port)| FlowName {
            client,
            server,
            client_port,
            server_port,
        },
    )
}

fn any_record() -> impl Strategy<Value = (Record, Vec<u8>)> {
    let payload = prop_oneof![
        9 => prop::collection::vec(any::<u8>(), 0..300),
        1 => (PAYLOAD_MAX - 2..PAYLOAD_MAX * 2).prop_map(|len| vec![7; len]),
    ];
    (any_flow(), any::<u32>(), any::<bool>(), 0..7, payload).prop_map(
        |(flow, seq, fin, kind, payload)| match kind {
            0 => (Record::Holds { flow, seq }, vec![]),
            1 => (Record::HoldsNoMore, vec![]),
            2 => (Record::Lost { flow, seq }, vec![]),
            3 => (Record::Release { flow, seq, ahead: fin }, vec![]),
            4 => (Record::Skip { flow, seq }, vec![]),
            5 => (Record::Open { flow }, vec![]),
            _ => (Record::Output { flow, seq, fin }, payload),
        },
    )
}

/// Reads everything; puts the pieces of one output together again.
fn read(stream: &[u8], cuts: &[usize]) -> Vec<(Record, Vec<u8>)> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    let mut reader = Reader::default();
    let mut found: Vec<(Record, Vec<u8>)> = Vec::new();
    for cut in cuts.windows(2) {
        reader.push(&stream[cut[0]..cut[1]]);
        while let Some((record, payload)) = reader.next_record().unwrap() {
            match (found.last_mut(), record) {
                (
                    Some((Record::Output { flow, seq, fin }, whole)),
                    Record::Output { flow: same, seq: next, fin: last },
                ) if *flow == same
                    && !whole.is_empty()
                    && whole.len() % PAYLOAD_MAX == 0
                    && seq.wrapping_add(whole.len() as u32) == next =>
                {
                    whole.extend(payload);
                    *fin = last;
                }
                _ => found.push((record, payload.to_vec())),
            }
        }
    }
    found
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        records in prop::collection::vec(any_record(), 0..20),
        share: u8,
        epoch: u64,
        cuts in prop::collection::vec(any::<usize>(), 0..40),
    ) {
        let mut writer = Writer::new(share, epoch);
        for (record, payload) in &records {
            match *record {
                Record::Output { flow, seq, fin } => writer.push_output(flow, seq, payload, fin),
                record => writer.push(&record),
            }
        }
        let mut found = read(writer.bytes(), &cuts);
        let hello = Record::Hello { version: replies::codec::VERSION, share, epoch };
        prop_assert_eq!(found.remove(0), (hello, vec![]));
        prop_assert_eq!(found, records);
    }

    /// Garbage, and good streams in which a byte is another one.
    #[test]
    fn any_bytes_are_read_without_panic(
        records in prop::collection::vec(any_record(), 0..5),
        garbage in prop::collection::vec(any::<u8>(), 0..60),
        at: prop::sample::Index,
        keep: bool,
    ) {
        let mut writer = Writer::new(0, 1);
        for (record, payload) in &records {
            match *record {
                Record::Output { flow, seq, fin } => writer.push_output(flow, seq, payload, fin),
                record => writer.push(&record),
            }
        }
        let mut stream = writer.bytes().to_vec();
        let at = at.index(stream.len());
        if keep {
            stream.splice(at..at, garbage);
        } else {
            stream.truncate(at);
            stream.extend(garbage);
        }
        let mut reader = Reader::default();
        let mut read = 0;
        for piece in stream.chunks(17) {
            reader.push(piece);
            loop {
                match reader.next_record() {
                    Ok(Some((_, payload))) => {
                        prop_assert!(payload.len() <= PAYLOAD_MAX);
                        read += 1;
                    }
                    Ok(None) => break,
                    Err(malformed) => {
                        prop_assert_eq!(reader.next_record(), Err(malformed));
                        return Ok(());
                    }
                }
            }
            prop_assert!(read <= stream.len() / 5 + 1);
        }
    }

    /// An announced length alone makes nobody wait for more than a frame.
    #[test]
    fn no_frame_is_longer_than_the_limit(length in FRAME_MAX as u32 + 1..) {
        let mut reader = Reader::default();
        reader.push(Writer::new(0, 1).bytes());
        prop_assert!(reader.next_record().unwrap().is_some());
        reader.push(&length.to_be_bytes());
        prop_assert!(reader.next_record().is_err());
    }
}
