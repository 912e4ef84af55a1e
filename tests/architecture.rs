//! Holds the table of arrows in ARCHITECTURE.md against the dependencies that `cargo metadata` reports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A crate's name, and the workspace crates beside it.
type Arrows = BTreeMap<String, BTreeSet<String>>;

#[test]
fn every_arrow_is_in_the_table() {
    let allowed = allowed_arrows();
    let mut wrong = Vec::new();
    for (name, dependencies) in drawn_arrows() {
        let Some(row) = allowed.get(&name) else {
            wrong.push(format!("{name} has no row"));
            continue;
        };
        for dependency in dependencies.difference(row) {
            wrong.push(format!("{name} -> {dependency} is not allowed"));
        }
    }
    assert!(
        wrong.is_empty(),
        "against the table of arrows in ARCHITECTURE.md:\n{}",
        wrong.join("\n")
    );
}

/// The normal dependencies of each workspace crate on other workspace crates.
fn drawn_arrows() -> Arrows {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    // With --no-deps the packages are the workspace members and nothing else.
    let packages = array(&metadata, "packages");
    let members: BTreeSet<&str> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = array(package, "dependencies")
                .iter()
                .filter(|dependency| is_normal(dependency) && is_local(dependency))
                .map(name)
                .filter(|dependency| members.contains(dependency))
                .map(str::to_owned)
                .collect();
            (name(package).to_owned(), dependencies)
        })
        .collect()
}

/// Normal dependencies carry a null kind; the others say "dev" or "build".
fn is_normal(dependency: &Value) -> bool {
    dependency["kind"].is_null()
}

/// A registry crate that shares a name with one of ours has no path.
fn is_local(dependency: &Value) -> bool {
    dependency["path"].is_string()
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("cargo metadata: `{key}` is not an array"))
}

fn name(value: &Value) -> &str {
    value["name"].as_str().expect("cargo metadata gives names")
}

/// The table under `## Arrows`.
fn allowed_arrows() -> Arrows {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows: Vec<(String, BTreeSet<String>)> = text
        .lines()
        .skip_while(|line| line.trim_end() != "## Arrows")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with('|'))
        .skip(2) // The header and the rule below it.
        .map(row)
        .collect();
    assert!(
        !rows.is_empty(),
        "ARCHITECTURE.md has no table under `## Arrows`"
    );
    let mut arrows = Arrows::new();
    for (name, dependencies) in rows {
        let earlier = arrows.insert(name.clone(), dependencies);
        assert!(earlier.is_none(), "ARCHITECTURE.md: {name} has two rows");
    }
    arrows
}

/// `| crate | one, two |`, where `none` stands for no dependency.
fn row(line: &str) -> (String, BTreeSet<String>) {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
    let [name, dependencies] = cells[..] else {
        panic!("ARCHITECTURE.md: the table of arrows has two columns, this row has not: {line}");
    };
    let dependencies = dependencies
        .split(',')
        .map(str::trim)
        .filter(|dependency| *dependency != "none")
        .map(str::to_owned)
        .collect();
    (name.trim().to_owned(), dependencies)
}
