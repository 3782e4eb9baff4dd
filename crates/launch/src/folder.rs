//! The folder of a recording: `records`, which the runtime writes and reads, and `about.json`, which says
//! what has to be the same where it is replayed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

const ABOUT: &str = "about.json";
const RECORDS: &str = "records";

/// Of a format of its own: a recording of another one is refused.
const VERSION: u32 = 2;

/// The folder of a recording.
pub struct Folder<'a>(&'a Path);

/// How a recorded program was started, and on which machine.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    version: u32,
    /// The file that was executed, by the path that the program is told.
    pub program: PathBuf,
    /// The words of the command.
    pub command: Vec<String>,
    /// In its order, on which addresses depend.
    pub environment: Vec<(String, String)>,
    /// Where.
    pub folder: PathBuf,
    processor: Processor,
}

/// What programs choose their instructions by.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Processor {
    model: String,
    features: BTreeSet<String>,
}

impl Folder<'_> {
    pub fn at(path: &Path) -> Folder<'_> {
        Folder(path)
    }

    /// Makes it, with what there is to say; the file for the records.
    pub fn create(&self, program: &Path, command: &[OsString]) -> anyhow::Result<File> {
        let folder = self.0.display();
        fs::create_dir_all(self.0).with_context(|| format!("cannot make the folder {folder}"))?;
        let mut there = fs::read_dir(self.0).with_context(|| format!("cannot read {folder}"))?;
        ensure!(
            there.next().is_none(),
            "{folder} is not empty: name a new folder, or remove what is in it"
        );
        let about = About {
            version: VERSION,
            program: program.to_owned(),
            command: command.iter().map(|word| text(word.clone())).collect::<Result<_, _>>()?,
            environment: std::env::vars_os()
                .map(|(name, value)| Ok((text(name)?, text(value)?)))
                .collect::<anyhow::Result<_>>()?,
            folder: std::env::current_dir().context("this folder is not there any more")?,
            processor: Processor::this()?,
        };
        let path = self.0.join(ABOUT);
        fs::write(&path, serde_json::to_string_pretty(&about)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        let path = self.0.join(RECORDS);
        File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Opens one that is there, if it can be replayed on this machine.
    pub fn open(&self) -> anyhow::Result<(About, File)> {
        let path = self.0.join(ABOUT);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} is no recording: no {ABOUT}", self.0.display()))?;
        let version: Version = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        ensure!(
            version.version == VERSION,
            "{} was recorded by another version of Steadfast (format {}; this one has {VERSION})",
            self.0.display(),
            version.version
        );
        let about: About = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        about.processor.is_like(&Processor::this()?)?;
        Ok((about, self.records()?))
    }

    /// The records alone.
    pub fn records(&self) -> anyhow::Result<File> {
        let path = self.0.join(RECORDS);
        File::open(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn text(word: OsString) -> anyhow::Result<String> {
    match word.into_string() {
        Ok(text) => Ok(text),
        Err(word) => {
            bail!("{word:?} is no UTF-8: neither the command nor its environment may have such")
        }
    }
}

impl Processor {
    fn this() -> anyhow::Result<Processor> {
        let text = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
            Some(value.trim())
        };
        Ok(Processor {
            model: field("model name").unwrap_or("unknown").to_owned(),
            features: field("flags")
                .context("/proc/cpuinfo does not say what the processor can do")?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        })
    }

    fn is_like(&self, this: &Processor) -> anyhow::Result<()> {
        let list = |missing: Vec<&String>| {
            missing.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ")
        };
        let lacking = list(self.features.difference(&this.features).collect());
        let added = list(this.features.difference(&self.features).collect());
        ensure!(
            lacking.is_empty() && added.is_empty(),
            "it was recorded on another processor ({}), and programs choose their instructions by what \
             the processor can do: this one ({}) lacks [{lacking}] and has besides [{added}]",
            self.model,
            this.model
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(features: &[&str]) -> Processor {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        Processor { model: "some".to_owned(), features }
    }

    #[test]
    fn another_processor_is_named() {
        let recorded = processor(&["sse2", "avx2"]);
        assert!(recorded.is_like(&processor(&["avx2", "sse2"])).is_ok());
        let refused = recorded.is_like(&processor(&["sse2", "avx512f"])).unwrap_err().to_string();
        assert!(
            refused.contains("lacks [avx2]") && refused.contains("besides [avx512f]"),
            "{refused}"
        );
        assert!(Processor::this().unwrap().features.contains("fpu"));
    }

    #[test]
    fn a_folder_that_is_in_use_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(dir.path());
        let command = ["sh".into(), "-c".into(), "true".into()];
        folder.create(Path::new("/bin/sh"), &command).unwrap();
        let (about, _) = folder.open().unwrap();
        assert_eq!(about.command, ["sh", "-c", "true"]);
        let again = folder.create(Path::new("/bin/sh"), &command).unwrap_err();
        assert!(again.to_string().contains("is not empty"), "{again}");
    }

    #[test]
    fn another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |text: &str| {
            fs::write(dir.path().join(ABOUT), text).unwrap();
            Folder::at(dir.path()).open().unwrap_err().to_string()
        };
        assert!(refused("{\"version\": 7}").contains("another version"));
        assert!(refused("{\"version\": 2}").contains("is damaged"));
        assert!(refused("no").contains("is damaged"));
        fs::remove_file(dir.path().join(ABOUT)).unwrap();
        assert!(Folder::at(dir.path()).open().unwrap_err().to_string().contains("no recording"));
    }
}
