//! Sets of system calls: what is asked about every call that is made is looked up here, one byte in place of a
//! dozen comparisons of its name.

use systable::Sysno;

/// All numbers are below.
pub const NUMBERS: usize = 512;

/// Some of them.
pub struct Calls(pub [bool; NUMBERS]);

impl Calls {
    /// Whether it is one of these.
    pub fn has(&self, name: Sysno) -> bool {
        self.0.get(name as usize).is_some_and(|&has| has)
    }
}

/// Those of which this function, which is constant, says so.
macro_rules! calls {
    ($is_one:path) => {
        $crate::calls::Calls(
            const {
                let mut calls = [false; $crate::calls::NUMBERS];
                let mut number = 0;
                while number < calls.len() {
                    if let Some(name) = ::systable::Sysno::new(number) {
                        calls[number] = $is_one(name);
                    }
                    number += 1;
                }
                calls
            },
        )
    };
}

pub(crate) use calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_its_function_says() {
        const fn is_pipe(name: Sysno) -> bool {
            matches!(name, Sysno::pipe | Sysno::pipe2)
        }
        static PIPES: Calls = calls!(is_pipe);
        for name in Sysno::iter() {
            assert_eq!(PIPES.has(name), is_pipe(name), "{name}");
        }
    }
}
