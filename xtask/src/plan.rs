//! Which steps there are, and in which order: what is quick and fails often comes first.
//!
//! Nothing large is built twice. Tests and binaries are built with the feature `verbs`, once, and run on the software fabric
//! here and on a device after that. That everything builds without the feature as well, the first lints show, and the
//! example, which is built in another profile anyway.

use std::ffi::OsString;

use crate::step::{Action, Failure, Step};
use crate::{device_tests, packages, softroce, toolchain, unsafe_code};

/// What `cargo xtask setup` does.
pub(crate) fn setup() -> Vec<Step> {
    vec![check("tools", toolchain::require), check("packages", packages::require), check("guest", softroce::prepare)]
}

/// What `cargo xtask test --quick` does.
pub(crate) fn quick() -> Vec<Step> {
    let mut steps = vec![check("tools", toolchain::require)];
    steps.extend(looks());
    steps.push(cargo("unit tests", "test --workspace --lib --bins"));
    steps
}

/// What `cargo xtask test` does.
pub(crate) fn full() -> Vec<Step> {
    let binaries = (device_tests::BINARIES, device_tests::binaries().into_os_string());
    // Denies what rustdoc warns of, broken links above all.
    let warnings = ("RUSTDOCFLAGS", "-D warnings".into());
    let mut steps = setup();
    steps.extend(looks());
    steps.extend([
        cargo("lints, verbs", "clippy --workspace --all-targets --features verbs -- -D warnings"),
        cargo("build", "build --workspace --features verbs --bins --tests"),
        cargo_with("tests", "test --workspace --features verbs", vec![binaries]),
        check("device tests", device_tests::check),
        cargo_with("docs", "doc --workspace --no-deps --features verbs", vec![warnings]),
        cargo("example", "run --release --example pubsub"),
    ]);
    steps
}

/// What needs no test to run.
fn looks() -> [Step; 3] {
    [
        cargo("format", "fmt --all --check"),
        check("unsafe code", unsafe_code::check),
        cargo("lints", "clippy --workspace --all-targets -- -D warnings"),
    ]
}

fn cargo(name: &'static str, words: &'static str) -> Step {
    cargo_with(name, words, Vec::new())
}

fn cargo_with(name: &'static str, words: &'static str, environment: Vec<(&'static str, OsString)>) -> Step {
    Step { name, action: Action::Cargo { arguments: words.split(' ').collect(), environment } }
}

const fn check(name: &'static str, check: fn() -> Result<(), Failure>) -> Step {
    Step { name, action: Action::Check(check) }
}
