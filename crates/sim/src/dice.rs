//! A small seeded generator, so that a run is a function of its seed alone, on every machine and
//! with every version of every library.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice of one run. Neighbouring seeds give unrelated runs.
    pub fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed);
        Dice(dice.roll())
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `0..n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.roll() % n }
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// 0 or 1.
    pub fn side(&mut self) -> usize {
        usize::from(self.coin())
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let n = u64::try_from(choices.len()).expect("a short list");
        choices[usize::try_from(self.below(n)).expect("below a length")]
    }
}
