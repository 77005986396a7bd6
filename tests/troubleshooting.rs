//! Every message that docs/troubleshooting.md quotes is one that the programs can print.
//!
//! The page quotes behind `>`, with … for what varies. What stands between is looked for in the sources, whatever crate it is of, so
//! that a message that changes takes the page along. An error and its cause come from different places, so each is looked
//! for by itself.

#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../docs/troubleshooting.md");

/// Where messages come from.
const CRATES: [&str; 7] = ["schema", "fabric", "client", "producer", "consumer", "broker", "cli"];

#[test]
fn every_message_that_the_page_quotes_is_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for name in CRATES {
        read_into(&mut sources, &root.join(name).join("src"));
    }
    let quoted: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("> ")).collect();
    assert!(quoted.len() > 20, "the page quotes {} messages: is it still written so?", quoted.len());
    let strange: Vec<&str> = quoted.into_iter().filter(|message| !is_in(message, &sources)).collect();
    assert!(strange.is_empty(), "no program says this any more: {strange:#?}");
}

#[test]
fn a_message_that_nobody_says_is_found_out() {
    let sources = vec!["the port {number} of {name} is not active".to_owned()];
    assert!(is_in("the port … of … is not active", &sources));
    assert!(!is_in("the port … of … is inactive", &sources));
}

/// Whether the sources have every part of a message.
fn is_in(message: &str, sources: &[String]) -> bool {
    parts(message).all(|part| sources.iter().any(|source| source.contains(part)))
}

/// What of a message stands in one string: what is between two variables, of one error, without the verb that failed.
fn parts(message: &str) -> impl Iterator<Item = &str> {
    let parts = message.split('…').flat_map(|part| part.split("; ")).flat_map(|part| part.split(": "));
    let parts = parts.map(|part| match part.split_once(' ') {
        Some((verb, rest)) if verb.starts_with("ibv_") => rest,
        _ => part.trim(),
    });
    // A single mark between two variables is no part by which a message could be told.
    parts.filter(|part| part.len() > 2)
}

/// The sources below a directory, with strings that go on on the next line joined.
fn read_into(sources: &mut Vec<String>, directory: &Path) {
    for entry in fs::read_dir(directory).expect("a crate has sources") {
        let path = entry.expect("a directory can be listed").path();
        if path.is_dir() {
            read_into(sources, &path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(joined(&fs::read_to_string(&path).expect("a source is text")));
        }
    }
}

fn joined(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut text, part| {
        text.push_str(part.trim_start());
        text
    })
}
