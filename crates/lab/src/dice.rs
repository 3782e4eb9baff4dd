//! Luck that can be repeated.
//!
//! A die has no state: what the `n`-th throw shows depends on the seed, `n` and the die
//! alone. So threads and CPUs cannot race for it, and the same seed means the same luck
//! for the same frames. The wire's BPF program throws the same dice.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// How often something befalls a frame: a probability in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Chance(u32);

const WHOLE: u32 = 1_000_000;

impl Chance {
    /// It never happens.
    pub const NEVER: Chance = Chance(0);
    /// It always happens.
    pub const ALWAYS: Chance = Chance(WHOLE);

    /// So many of a hundred.
    ///
    /// # Panics
    /// More than a hundred of a hundred.
    pub const fn percent(percent: u32) -> Chance {
        assert!(percent <= 100);
        Chance(percent * (WHOLE / 100))
    }

    /// In units of 2⁻³², as the wire's table has it.
    pub(crate) fn of_2_32(self) -> u64 {
        (u64::from(self.0) << 32) / u64::from(WHOLE)
    }
}

impl TryFrom<f64> for Chance {
    type Error = String;

    /// From a probability, 0 to 1.
    fn try_from(p: f64) -> Result<Chance, String> {
        if !(0.0..=1.0).contains(&p) {
            return Err(format!("{p} is not a probability; use 0 to 1, such as 0.1, or 10%"));
        }
        Ok(Chance((p * f64::from(WHOLE)).round() as u32))
    }
}

impl From<Chance> for f64 {
    fn from(chance: Chance) -> f64 {
        f64::from(chance.0) / f64::from(WHOLE)
    }
}

impl FromStr for Chance {
    type Err = String;

    /// `0.1` or `10%`.
    fn from_str(text: &str) -> Result<Chance, String> {
        let (number, unit) = match text.strip_suffix('%') {
            Some(percent) => (percent, 0.01),
            None => (text, 1.0),
        };
        let number: f64 = number
            .parse()
            .map_err(|_| format!("\"{text}\" is not a probability; use 0 to 1, or 10%"))?;
        Chance::try_from(number * unit)
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / f64::from(WHOLE / 100))
    }
}

/// The finalizer of SplitMix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Dice of one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Other dice, for a place that shall have its own luck.
    pub(crate) fn at(self, place: u64) -> Dice {
        Dice(mix(self.0.wrapping_add(mix(place + 1))))
    }

    /// What the `n`-th throw of a die shows.
    pub(crate) fn throw(self, n: u64, die: u64) -> u64 {
        mix(self.0.wrapping_add(mix(n.wrapping_mul(4).wrapping_add(die))))
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(self, n: u64, die: u64, end: u64) -> u64 {
        ((u128::from(self.throw(n, die)) * u128::from(end)) >> 64) as u64
    }

    /// Whether the `n`-th throw has this luck.
    pub(crate) fn hit(self, n: u64, die: u64, chance: Chance) -> bool {
        (self.throw(n, die) >> 32) < chance.of_2_32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_read_and_shown() {
        assert_eq!("0.1".parse(), Ok(Chance::percent(10)));
        assert_eq!("2.5%".parse::<Chance>().unwrap().to_string(), "2.5%");
        assert_eq!("1".parse(), Ok(Chance::ALWAYS));
        for bad in ["1.1", "-0.1", "101%", "often", "", "NaN"] {
            assert!(bad.parse::<Chance>().is_err(), "{bad:?} was accepted");
        }
        assert_eq!(serde_json::to_string(&Chance::percent(10)).unwrap(), "0.1");
        assert!(serde_json::from_str::<Chance>("2").is_err());
    }

    #[test]
    fn luck_comes_as_often_as_asked_and_repeats() {
        let hits = |seed, chance| (0..100_000).filter(|&n| Dice(seed).hit(n, 0, chance)).count();
        assert_eq!(hits(1, Chance::NEVER), 0);
        assert_eq!(hits(1, Chance::ALWAYS), 100_000);
        let tenth = hits(1, Chance::percent(10));
        // Five standard deviations: sqrt(100000 * 0.1 * 0.9) is 95.
        assert!(tenth.abs_diff(10_000) < 475, "{tenth}");
        let which = |seed| -> Vec<bool> {
            (0..64).map(|n| Dice(seed).hit(n, 0, Chance::percent(50))).collect()
        };
        assert_eq!(which(7), which(7));
        assert_ne!(which(7), which(8));
        assert!((0..1000).all(|n| Dice(3).below(n, 2, 6) < 6));
    }
}
