//! What a runtime is told by whoever starts it: the first words of its command line. (Not its
//! environment, which is the program's.)
//!
//! The command line is: the runtime's name, one word for it ([`Config`]), the path under which the
//! program was executed, a mark, and then the program's own.

use core::ffi::CStr;
use core::fmt::{self, Write as _};

/// Words of the command line that are the runtime's. The program's own begin at an address that is as
/// aligned as the whole.
pub const OWN_WORDS: usize = 4;

/// The first word, for people who look at a process that has not come far.
pub const NAME: &CStr = c"steadfast-runtime";

/// The last one.
pub const MARK: &CStr = c"--";

/// What a runtime is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The descriptor of its own image.
    pub image: i32,
    /// The descriptor of the program; none: it is to be found, and checked, under the path.
    pub program: Option<i32>,
    /// What is recorded, or replayed.
    pub recorder: Option<Recorder>,
}

/// What a runtime does besides, with the open file of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorder {
    /// The file.
    pub fd: i32,
    /// What processes share: an empty file of [`crate::record::GROUP_LEN`] bytes to begin with.
    pub group: i32,
    /// The seat of the thread that has executed this program. 0: it is the first program.
    pub seat: u16,
    /// The standard error of the first program: this one's may be closed. None: it is the first, or had none.
    pub voice: Option<i32>,
    /// What is done with it.
    pub way: Way,
}

/// What is done with a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is written, for as long as the runtime understands what the program does.
    Record,
    /// The program does what was recorded.
    Replay {
        /// And stops behind so many records.
        until: Option<u64>,
        /// And goes on for real where the recording ends.
        live: bool,
    },
}

impl Recorder {
    /// Of a recording from its beginning.
    pub const fn new(fd: i32, group: i32, way: Way) -> Recorder {
        Recorder { fd, group, seat: 0, voice: None, way }
    }
}

/// Bytes of the word, always: where the program's own words and its stack are depends on it.
const LENGTH: usize = 160;

/// A word of a command line, with the zero at its end.
pub struct Word {
    bytes: [u8; LENGTH + 1],
    len: usize,
}

impl Config {
    /// As a word.
    pub fn word(&self) -> Word {
        let mut word = Word { bytes: [b' '; LENGTH + 1], len: 0 };
        word.bytes[LENGTH] = 0;
        let mut write = || -> fmt::Result {
            write!(word, "image={}", self.image)?;
            if let Some(program) = self.program {
                write!(word, ",program={program}")?;
            }
            let Some(recorder) = &self.recorder else { return Ok(()) };
            let Recorder { fd, group, seat, voice, way } = recorder;
            match way {
                Way::Record => write!(word, ",record={fd}")?,
                Way::Replay { until, live } => {
                    write!(word, ",replay={fd}")?;
                    if let Some(until) = until {
                        write!(word, ",until={until:x}")?;
                    }
                    if *live {
                        write!(word, ",live=1")?;
                    }
                }
            }
            write!(word, ",group={group},seat={seat}")?;
            voice.map_or(Ok(()), |voice| write!(word, ",voice={voice}"))
        };
        write().expect("all numbers have room in a word");
        word
    }

    /// From a word. `None`: it is none of [`Config::word`]'s.
    pub fn parse(word: &CStr) -> Option<Config> {
        let mut config = Config { image: -1, program: None, recorder: None };
        for part in word.to_str().ok()?.trim_end().split(',') {
            let (name, value) = part.split_once('=')?;
            let number = || value.parse().ok();
            let long = || u64::from_str_radix(value, 16).ok();
            match (name, &mut config.recorder) {
                ("image", _) => config.image = number()?,
                ("program", _) => config.program = Some(number()?),
                ("record", none @ None) => *none = Some(Recorder::new(number()?, -1, Way::Record)),
                ("replay", none @ None) => {
                    let way = Way::Replay { until: None, live: false };
                    *none = Some(Recorder::new(number()?, -1, way));
                }
                ("group", Some(recorder)) => recorder.group = number()?,
                ("voice", Some(recorder)) => recorder.voice = Some(number()?),
                ("seat", Some(recorder)) => recorder.seat = value.parse().ok()?,
                (name, Some(Recorder { way: Way::Replay { until, live }, .. })) => match name {
                    "until" => *until = Some(long()?),
                    "live" if value == "1" => *live = true,
                    _ => return None,
                },
                _ => return None,
            }
        }
        (config.image >= 0).then_some(config)
    }
}

impl Word {
    /// As execve wants it.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written to")
    }
}

impl fmt::Write for Word {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        if end > LENGTH {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let of = |way| Recorder::new(i32::MAX, i32::MAX, way);
        let far = |way| Recorder { seat: u16::MAX, voice: Some(i32::MAX), ..of(way) };
        let until = Some(u64::MAX);
        let recorders = [
            None,
            Some(of(Way::Record)),
            Some(far(Way::Record)),
            Some(of(Way::Replay { until: None, live: false })),
            Some(of(Way::Replay { until: None, live: true })),
            Some(far(Way::Replay { until, live: true })),
        ];
        for recorder in recorders {
            for program in [None, Some(0), Some(i32::MAX)] {
                let config = Config { image: 1_000_000, program, recorder };
                let word = config.word();
                assert_eq!(Config::parse(word.as_c_str()), Some(config));
                assert_eq!(word.as_c_str().count_bytes(), LENGTH);
            }
        }
    }

    #[test]
    fn nothing_else_is_heard() {
        for word in [
            c"",
            c"image=",
            c"program=3",
            c"image=3,what=4",
            c"image=-1",
            c"image=3,",
            c"image=3,until=4",
            c"image=3,record=4,replay=4",
        ] {
            assert_eq!(Config::parse(word), None, "{word:?}");
        }
    }
}
