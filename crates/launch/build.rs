//! Builds the runtime's image. It is a program of another kind than the rest: linked to a fixed
//! address, without a library beneath it, and it aborts on a panic. Cargo knows such things of a whole
//! build only, so this is one of its own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where this is"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to put things"));
    let runtime = here.join("../runtime");
    let parts = ["Cargo.toml", "src", "program/Cargo.toml", "program/Cargo.lock", "program/src"];
    for part in parts.into_iter().chain(["../systable/src", "../recording/src"]) {
        println!("cargo:rerun-if-changed={}", runtime.join(part).display());
    }
    let image = build(&runtime.join("program/Cargo.toml"), &out.join("runtime"));
    println!("cargo:rustc-env=STEADFAST_RUNTIME={}", image.display());
}

fn build(manifest: &Path, target: &Path) -> PathBuf {
    let link = [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        &format!("-Wl,--image-base={:#x}", runtime::layout::IMAGE),
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
        "-Wl,-z,separate-code",
        "-Wl,-z,norelro",
    ];
    // Addresses relative to the instruction: the image lies beyond what absolute ones reach.
    let mut flags = vec!["-Crelocation-model=pic".to_owned()];
    flags.extend(link.iter().map(|arg| format!("-Clink-arg={arg}")));
    let cargo = env::var_os("CARGO").expect("cargo says where it is");
    let status = Command::new(cargo)
        .args(["build", "--release", "--locked", "--target", TARGET, "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(target)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", flags.join(" "))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("building the runtime's image failed: {status}; see above"),
        Err(why) => panic!("cannot run cargo for the runtime's image: {why}"),
    }
    target.join(TARGET).join("release/runtime-program")
}
