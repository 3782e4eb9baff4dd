//! What many measurements say together.

/// Median and quartiles, and the extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// A quarter is smaller.
    pub q1: f64,
    /// Half is smaller.
    pub median: f64,
    /// A quarter is larger.
    pub q3: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Spread {
        let at = |percent| percentile(values, percent);
        Spread { min: at(0.0), q1: at(25.0), median: at(50.0), q3: at(75.0), max: at(100.0) }
    }

    /// Whether `value` lies inside the quartiles, so that the next run may well be on its other
    /// side.
    pub fn leaves_open(&self, value: f64) -> bool {
        self.q1 < value && value < self.q3
    }
}

/// The smallest value that at least `percent` of all do not exceed (nearest rank); the mean of
/// the middle two for the median of an even number.
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if percent == 50.0 && n.is_multiple_of(2) {
        return f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]);
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to n
    let rank = (percent / 100.0 * n as f64).ceil() as usize;
    sorted[rank.clamp(1, n) - 1]
}

/// The share of all values that do not exceed x, as corners of a curve from (smallest, 1/n) to
/// (largest, 1): `[x, share]`. No more than `most` corners; the extremes and the tail, where
/// failures show, are always among them.
pub fn cdf(values: &[f64], most: usize) -> Vec<[f64; 2]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let corner = |i: usize| [sorted[i], (i + 1) as f64 / n as f64];
    if n <= most {
        return (0..n).map(corner).collect();
    }
    // Half of the corners go to the slowest values one by one, half to all others evenly.
    let tail = most / 2;
    let (body, evenly) = (n - tail, most - tail);
    let body = (0..evenly).map(|i| corner(i * (body - 1) / (evenly - 1).max(1)));
    body.chain((n - tail..n).map(corner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99.0), 99.0);
        assert_eq!(percentile(&hundred, 50.0), 50.5);
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 50.0), 2.0);
        assert_eq!((percentile(&[4.0], 0.0), percentile(&[4.0], 100.0)), (4.0, 4.0));
        assert_eq!(percentile(&[1.0; 20], 99.0), 1.0);
    }

    #[test]
    fn quartiles_bound_the_middle_half() {
        let spread = Spread::of(&[8.0, 1.0, 5.0, 3.0, 7.0, 2.0, 6.0, 4.0]);
        let expected = Spread { min: 1.0, q1: 2.0, median: 4.5, q3: 6.0, max: 8.0 };
        assert_eq!(spread, expected);
        assert!(spread.leaves_open(4.0));
        assert!(!spread.leaves_open(2.0) && !spread.leaves_open(6.0), "the quartiles decide");
        assert!(!Spread::of(&[5.0]).leaves_open(5.0), "one run is all there is to say");
    }

    #[test]
    fn a_cdf_rises_to_one() {
        let corners = cdf(&[30.0, 10.0, 20.0, 20.0], 100);
        assert_eq!(corners, [[10.0, 0.25], [20.0, 0.5], [20.0, 0.75], [30.0, 1.0]]);
        assert!(cdf(&[], 10).is_empty());
    }

    #[test]
    fn a_thinned_cdf_keeps_the_extremes_and_the_tail() {
        let values: Vec<f64> = (1..=10_000).map(f64::from).collect();
        let corners = cdf(&values, 200);
        assert_eq!(corners.len(), 200);
        assert_eq!((corners[0], corners[199]), ([1.0, 0.0001], [10_000.0, 1.0]));
        assert_eq!(corners[100][0], 9_901.0, "the last hundred are all there");
        let rises = corners.windows(2).all(|w| w[0][0] <= w[1][0] && w[0][1] < w[1][1]);
        assert!(rises, "{corners:?}");
    }
}
