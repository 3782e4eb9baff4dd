//! The documents against the code: a table that nobody compares is wrong within a month.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// A crate's row in ARCHITECTURE.md.
#[derive(Debug, PartialEq, Eq)]
struct Crate {
    depends_on: BTreeSet<String>,
    forbids_unsafe: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows between the two marks of ARCHITECTURE.md.
fn documented() -> BTreeMap<String, Crate> {
    let page = text("ARCHITECTURE.md");
    let (_, rest) = page.split_once("<!-- workspace-crates: begin -->").expect("the first mark");
    let (table, _) = rest.split_once("<!-- workspace-crates: end -->").expect("the second mark");
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, depends_on, safety] = cells[..] else { panic!("not three cells: {row}") };
        let depends_on = depends_on.split(',').map(str::trim).filter(|name| !name.is_empty());
        let row = Crate {
            depends_on: depends_on.map(str::to_owned).collect(),
            forbids_unsafe: match safety {
                "forbidden" => true,
                "allowed" => false,
                _ => panic!("neither forbidden nor allowed: {row}"),
            },
        };
        (name.to_owned(), row)
    })
    .collect()
}

/// The workspace as its manifests and sources have it.
fn real() -> BTreeMap<String, Crate> {
    let folders = fs::read_dir(root().join("crates")).expect("the workspace has crates");
    let folders = folders.map(|entry| entry.expect("a readable folder").path());
    let manifests: BTreeMap<PathBuf, Table> = folders
        .filter(|folder| folder.join("Cargo.toml").exists())
        .map(|folder| {
            let manifest = text(folder.join("Cargo.toml"));
            (folder, manifest.parse().expect("cargo has read this manifest"))
        })
        .collect();
    let name = |manifest: &Table| manifest["package"]["name"].as_str().expect("a name").to_owned();
    let members: BTreeSet<String> = manifests.values().map(name).collect();
    manifests
        .iter()
        .map(|(folder, manifest)| {
            let own = name(manifest);
            assert_eq!(folder.file_name().unwrap(), own.as_str(), "a folder's name is its crate's");
            let depends_on = dependencies(manifest).intersection(&members).cloned().collect();
            (own, Crate { depends_on, forbids_unsafe: forbids_unsafe(folder) })
        })
        .collect()
}

/// Names in every dependency table of a manifest, those for one target included.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        match key.as_str() {
            "dependencies" | "dev-dependencies" | "build-dependencies" => {
                names.extend(table.keys().cloned());
            }
            "target" => {
                names.extend(table.values().filter_map(Value::as_table).flat_map(dependencies));
            }
            _ => {}
        }
    }
    names
}

fn forbids_unsafe(folder: &Path) -> bool {
    let roots = ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file));
    let sources: Vec<String> = roots.iter().filter(|file| file.exists()).map(text).collect();
    !sources.is_empty() && sources.iter().all(|source| source.contains("#![forbid(unsafe_code)]"))
}

#[test]
fn the_table_of_crates_is_true() {
    let (documented, real) = (documented(), real());
    for (name, row) in &real {
        let Some(said) = documented.get(name) else {
            panic!("ARCHITECTURE.md has no row for crate {name}; add one for {row:?}")
        };
        assert_eq!(said, row, "crate {name}: ARCHITECTURE.md (left) against the workspace (right)");
    }
    for name in documented.keys() {
        assert!(real.contains_key(name), "ARCHITECTURE.md has a row for {name}, which is gone");
    }
}

#[test]
fn every_counter_and_every_probe_is_explained_to_operators() {
    let page = text("docs/operations.md");
    let counters = datapath::Counter::ALL.iter().map(|counter| counter.name());
    let probes = node::check::PROBES.iter().map(|probe| probe.id);
    for name in counters.chain(probes) {
        assert!(page.contains(&format!("| `{name}` |")), "docs/operations.md has no row `{name}`");
    }
}

/// Every key that a written configuration contains, so that a new key needs a line of explanation.
#[test]
fn every_key_of_the_configuration_is_explained_to_operators() {
    let example = text("docs/examples/steadfast.toml").replace("# user = ", "user = ");
    let written = |text: &str| -> Table {
        let config = node::config::Config::parse(text, Path::new("f.toml")).unwrap();
        config.to_toml().parse().unwrap()
    };
    let (track, message) = (written(&example), written(&text("docs/examples/message.toml")));
    let tables = [&track["node"], &track["budget"], &track["service"][0], &message["service"][0]];
    let page = text("docs/operations.md");
    for key in tables.into_iter().flat_map(|value| value.as_table().unwrap().keys()) {
        assert!(page.contains(&format!("| `{key}` |")), "docs/operations.md has no row `{key}`");
    }
}

#[test]
fn the_configuration_in_the_readme_is_accepted() {
    let page = text("README.md");
    let (_, rest) = page.split_once("```toml\n").expect("the README shows a configuration");
    let (example, _) = rest.split_once("```").expect("the block has an end");
    node::config::Config::parse(example, Path::new("README.md")).unwrap();
}

/// Links between the documents lead somewhere.
#[test]
fn links_between_documents_lead_to_files() {
    let mut pages = vec!["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .into_iter()
        .map(PathBuf::from)
        .collect::<Vec<_>>();
    for folder in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root().join(folder)).expect("the documents are there");
        let names = entries.map(|entry| Path::new(folder).join(entry.unwrap().file_name()));
        pages.extend(names.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    for page in pages {
        let text = text(&page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let path = root().join(page.parent().unwrap_or(Path::new(""))).join(file);
            assert!(path.exists(), "{}: the link to {target} leads nowhere", page.display());
        }
    }
}
