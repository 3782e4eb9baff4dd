//! The one clock the kernel's programs and user space agree on.
//!
//! Leases are deadlines that a BPF program compares with `bpf_ktime_get_boot_ns`. That clock is
//! `CLOCK_BOOTTIME`: unlike `CLOCK_MONOTONIC` (Rust's `Instant`) it also counts the time a host
//! spends suspended, so a host that slept through its lease finds it expired.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, suspended time included: the clock of `bpf_ktime_get_boot_ns`.
pub fn now_boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists since 2.6.39");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

#[cfg(test)]
mod tests {
    use super::now_boottime_ns;

    /// The unit is nanoseconds and the origin is boot: within the uptime's own resolution it
    /// equals what the kernel prints.
    #[test]
    fn agrees_with_the_uptime() {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_s: f64 = text.split_whitespace().next().unwrap().parse().unwrap();
        let after_s = now_boottime_ns() as f64 / 1e9;
        assert!(after_s >= uptime_s - 0.011, "{after_s} before {uptime_s}");
        assert!(after_s < uptime_s + 10.0, "{after_s} long after {uptime_s}");
    }
}
