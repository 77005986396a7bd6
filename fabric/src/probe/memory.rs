//! How much memory a probe may take.

/// The memory that can be had without swapping, in bytes, as the system estimates it; `None` if it does not say.
pub fn memory_available() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_found_among_the_rest() {
        let meminfo = "MemTotal:        2048 kB\nMemFree:            1 kB\nMemAvailable:    1000 kB\nBuffers: 3 kB\n";
        assert_eq!(parse(meminfo), Some(1_024_000));
        assert_eq!(parse("MemTotal:        2048 kB\n"), None);
    }
}
