//! A recording as people read it.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use recording::{Call, Clocks, Head, Left, Payload, Record, Records, Turn, read_words};
use runtime::record::report::{Brief, damage};

use crate::folder::Folder;

/// So many bytes of what the kernel wrote are shown.
const SHOWN: usize = 48;

/// Writes a line for each record: its number, where in the file it is, and what it says.
///
/// # Errors
/// There is no recording, or it cannot be written. What is damaged is said in the last line.
pub fn trace(folder: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let mut bytes = vec![];
    Folder::at(folder).records()?.read_to_end(&mut bytes).context("cannot read the recording")?;
    match write(&bytes, out) {
        // Whoever reads it has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the records"),
    }
}

fn write(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut records = match Records::of(bytes) {
        Ok(records) => records,
        Err(why) => return writeln!(out, "{}", damage(why)),
    };
    let (mut number, mut clocks) = (0, Clocks::new());
    loop {
        let at = records.place().at;
        match records.next() {
            Some(Ok(record)) => {
                number += 1;
                let time = match record.head {
                    Head::Time(time) => clocks.told(time),
                    Head::Turn(Turn { left: Left::Killed, .. }) => {
                        clocks = Clocks::new();
                        None
                    }
                    _ => None,
                };
                writeln!(out, "{number:>8} {at:>10}  {}", Line { record, time })?;
            }
            Some(Err(why)) => {
                writeln!(out, "{:>8} {at:>10}  {}", "", damage(why))?;
                break;
            }
            None => break,
        }
    }
    Ok(())
}

struct Line<'a> {
    record: Record<'a>,
    /// What a clock has said.
    time: Option<i64>,
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Record { head, payload } = self.record;
        write!(f, "{}", Brief(head))?;
        if let Some(time) = self.time {
            write!(f, " = {time}")?;
        }
        match head {
            Head::Call(Call { payload: Payload::Written, .. }) => {
                let shown = &payload[..payload.len().min(SHOWN)];
                let more = if payload.len() > SHOWN { "…" } else { "" };
                write!(f, "  \"{}\"{more} {} bytes", shown.escape_ascii(), payload.len())
            }
            Head::Call(Call { payload: Payload::Words, .. }) => {
                let (mut left, mut shown) = (payload, 0);
                f.write_str(" ")?;
                let mut group = [0; 16];
                while shown < SHOWN
                    && let Some(rest) = read_words(left, &mut group)
                {
                    let words = group.as_chunks::<4>().0;
                    words
                        .iter()
                        .try_for_each(|word| write!(f, " {:x}", u32::from_le_bytes(*word)))?;
                    shown += group.len();
                    left = rest;
                }
                f.write_str(if left.is_empty() { "" } else { " …" })
            }
            Head::Call(Call { payload: Payload::Hash(hash), .. }) => {
                write!(f, "  hash {hash:08x}")
            }
            Head::Signal(_) => {
                let number = payload.first().copied().unwrap_or_default();
                write!(f, " {number}")
            }
            _ => Ok(()),
        }
    }
}
