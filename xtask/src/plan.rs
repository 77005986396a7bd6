//! Which steps there are, and in which order: what is quick and fails often comes first.

use crate::step::{Action, Step};
use crate::{toolchain, unsafe_code};

/// Denies what rustdoc warns of, broken links above all.
const DOC_WARNINGS: &[(&str, &str)] = &[("RUSTDOCFLAGS", "-D warnings")];

/// What `cargo xtask setup` does.
pub(crate) fn setup() -> Vec<Step> {
    vec![check("tools", toolchain::require)]
}

/// What `cargo xtask test --quick` does.
pub(crate) fn quick() -> Vec<Step> {
    let mut steps = before_tests();
    steps.push(cargo("unit tests", &["test", "--workspace", "--lib", "--bins"]));
    steps
}

/// What `cargo xtask test` does.
pub(crate) fn full() -> Vec<Step> {
    let mut steps = before_tests();
    steps.extend([
        // The tests of the whole bus start these as processes of their own, and build them with the same words if need be.
        cargo("binaries", &["build", "--package", "keyway-broker", "--package", "keyway-cli", "--bins"]),
        cargo("tests", &["test", "--workspace"]),
        Step {
            name: "docs",
            action: Action::Cargo { arguments: &["doc", "--workspace", "--no-deps"], environment: DOC_WARNINGS },
        },
        cargo("example", &["run", "--release", "--example", "pubsub"]),
    ]);
    steps
}

fn before_tests() -> Vec<Step> {
    vec![
        check("tools", toolchain::require),
        cargo("format", &["fmt", "--all", "--check"]),
        check("unsafe code", unsafe_code::check),
        cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ]
}

const fn cargo(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step { name, action: Action::Cargo { arguments, environment: &[] } }
}

const fn check(name: &'static str, check: fn() -> Result<(), crate::step::Failure>) -> Step {
    Step { name, action: Action::Check(check) }
}
