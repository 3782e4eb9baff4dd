//! Tests that others have written for what the kernel does: each has the result that it has without the
//! runtime. These are a few modules of Python's own; the others, and more collections, are run by
//! `tools/conformance.sh`.

use std::path::Path;

use crate::same;

/// Those that take seconds, and ask nothing about how long something takes.
const MODULES: [&str; 11] = [
    "test_os",
    "test_posix",
    "test_select",
    "test_epoll",
    "test_fcntl",
    "test_mmap",
    "test_resource",
    "test_thread",
    "test_pty",
    "test_openpty",
    "test_tempfile",
];

#[test]
fn pythons_own_tests() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/conformance/cpython.py");
    // What they say on standard error has times and addresses in it.
    let quietly = ["sh", "-c", "exec \"$@\" 2>/dev/null", "sh", "/usr/bin/python3"].map(Path::new);
    let mut command = quietly.to_vec();
    command.push(&script);
    command.extend(MODULES.map(Path::new));
    let results = same(&command);
    let passed = results.lines().filter(|line| line.ends_with("\tok")).count();
    assert!(
        passed > 400,
        "only {passed} of Python's tests pass; tools/deps.sh unpacks them\n{results}"
    );
}
