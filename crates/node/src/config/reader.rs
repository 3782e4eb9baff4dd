//! Walking a parsed TOML document so that every mistake keeps its place.
//!
//! [`Table`] hands out values by key and type and remembers which keys it was asked for; a value
//! that is missing or wrong is noted in [`Problems`] and a placeholder returned, so that one walk
//! finds all mistakes. The placeholder never escapes: with a problem noted there is no
//! configuration. [`Problems`] also learns the place of every key, by its path, for the
//! comparisons that come after the walk.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Mistake;

type Value<'t> = Spanned<DeValue<'t>>;

/// The mistakes found so far, and where every key stands.
pub(super) struct Problems<'t> {
    text: &'t str,
    places: RefCell<BTreeMap<String, Range<usize>>>,
    found: RefCell<Vec<(usize, Mistake)>>,
}

impl<'t> Problems<'t> {
    pub fn new(text: &'t str) -> Problems<'t> {
        Problems { text, places: RefCell::default(), found: RefCell::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Notes a mistake at a place of the text, given in bytes.
    pub fn at(&self, place: usize, key: &str, what: impl Into<String>, mend: impl Into<String>) {
        let place = place.min(self.text.len());
        let before = self.text.get(..place).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let mistake = Mistake {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: key.to_owned(),
            what: what.into(),
            mend: mend.into(),
        };
        self.found.borrow_mut().push((place, mistake));
    }

    /// Notes a mistake at the value of a key that was read.
    pub fn of(&self, key: &str, what: impl Into<String>, mend: impl Into<String>) {
        // A key that took its default has no place of its own: its table has.
        let places = self.places.borrow();
        let mut path = key;
        let place = loop {
            match places.get(path) {
                Some(place) => break place.start,
                None => match path.rfind(['.', '[']) {
                    Some(end) => path = &path[..end],
                    None => break 0,
                },
            }
        };
        drop(places);
        self.at(place, key, what, mend);
    }

    /// Whether a key of this path was read from the file.
    pub fn knows(&self, key: &str) -> bool {
        self.places.borrow().contains_key(key)
    }

    /// The line, from 1, on which the value of a key stands.
    pub fn line_of(&self, key: &str) -> usize {
        let start = self.places.borrow().get(key).map_or(0, |place| place.start);
        self.text[..start].matches('\n').count() + 1
    }

    pub fn into_sorted(self) -> Vec<Mistake> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, mistake)| mistake).collect()
    }

    fn learn(&self, key: &str, place: Range<usize>) {
        self.places.borrow_mut().insert(key.to_owned(), place);
    }
}

/// One table of the document, being read.
pub(super) struct Table<'a, 't> {
    problems: &'a Problems<'t>,
    /// `None`: the table is missing; every key of it then takes its default or is missing too.
    entries: Option<&'a DeTable<'t>>,
    path: String,
    place: usize,
    asked: Vec<&'static str>,
}

impl<'a, 't> Table<'a, 't> {
    /// The whole document.
    pub fn document(problems: &'a Problems<'t>, table: &'a Spanned<DeTable<'t>>) -> Self {
        let path = String::new();
        Table { problems, entries: Some(table.get_ref()), path, place: 0, asked: Vec::new() }
    }

    /// The path of a key of this table.
    pub fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Whether the key is written in the file.
    pub fn has(&self, key: &str) -> bool {
        self.entries.is_some_and(|entries| entries.contains_key(key))
    }

    /// Reports every key that nobody asked for.
    pub fn finish(self) {
        for (key, _) in self.entries.into_iter().flatten() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                let mend = match nearest(name, &self.asked) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("known here: {}", self.asked.join(", ")),
                };
                let path = self.path_of(name);
                self.problems.at(key.span().start, &path, "no such key", mend);
            }
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Value<'t>> {
        self.asked.push(key);
        let value = self.entries?.get(key)?;
        self.problems.learn(&self.path_of(key), value.span());
        Some(value)
    }

    fn required(&mut self, key: &'static str, example: &str) -> Option<&'a Value<'t>> {
        let value = self.take(key);
        if value.is_none() {
            let path = self.path_of(key);
            let mend = format!("write {key} = {example}");
            self.problems.at(self.place, &path, "this key is missing", mend);
        }
        value
    }

    /// Notes a mistake at a key's value.
    pub fn wrong(&self, key: &str, what: impl Into<String>, mend: impl Into<String>) {
        self.problems.of(&self.path_of(key), what, mend);
    }

    /// Notes that a key's value is none of the words that it may be.
    pub fn unknown_word(&self, key: &str, word: &str, known: &[&str]) {
        let mend = match nearest(word, known) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => {
                let known: Vec<_> = known.iter().map(|word| format!("{word:?}")).collect();
                format!("write {}", known.join(" or "))
            }
        };
        self.wrong(key, format!("there is no {key} {word:?}"), mend);
    }

    fn mistyped(&self, path: &str, value: &Value<'_>, wanted: &str, example: &str) {
        let what = format!("expected {wanted}, found {}", value.get_ref().type_str());
        self.problems.at(value.span().start, path, what, format!("write {example}"));
    }

    /// A table inside this one; one that is missing reads as an empty one.
    pub fn table(&mut self, key: &'static str) -> Table<'a, 't> {
        let (path, problems) = (self.path_of(key), self.problems);
        let value = self.take(key);
        let place = value.map_or(self.place, |value| value.span().start);
        let entries = match value.map(|value| (value, value.get_ref())) {
            Some((_, DeValue::Table(entries))) => Some(entries),
            Some((value, _)) => {
                self.mistyped(&path, value, "a table", &format!("[{key}]"));
                None
            }
            None => None,
        };
        Table { problems, entries, path, place, asked: Vec::new() }
    }

    /// An array of tables such as `[[service]]`.
    pub fn tables(&mut self, key: &'static str) -> Vec<Table<'a, 't>> {
        let (path, problems) = (self.path_of(key), self.problems);
        let Some(value) = self.take(key) else { return Vec::new() };
        let mut tables = Vec::new();
        if let DeValue::Array(items) = value.get_ref() {
            for (i, item) in items.iter().enumerate() {
                let DeValue::Table(entries) = item.get_ref() else { break };
                let path = format!("{path}[{i}]");
                let place = item.span().start;
                problems.learn(&path, item.span());
                tables.push(Table {
                    problems,
                    entries: Some(entries),
                    path,
                    place,
                    asked: Vec::new(),
                });
            }
            if tables.len() == items.len() {
                return tables;
            }
        }
        let wanted = "a list of tables";
        self.mistyped(&path, value, wanted, &format!("[[{key}]] above each of them"));
        tables
    }

    /// A string that must be there and hold something.
    pub fn string(&mut self, key: &'static str, example: &str) -> String {
        let value = self.required(key, example);
        let text = self.as_string(key, value, example);
        if text.as_deref() == Some("") {
            self.wrong(key, "this is empty", format!("write {key} = {example}"));
        }
        text.unwrap_or_default()
    }

    /// A string that may be left out.
    pub fn optional_string(&mut self, key: &'static str, example: &str) -> Option<String> {
        let value = self.take(key);
        self.as_string(key, value, example)
    }

    fn as_string(&self, key: &str, value: Option<&Value<'_>>, example: &str) -> Option<String> {
        let value = value?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            let example = format!("{key} = {example}");
            self.mistyped(&self.path_of(key), value, "a string", &example);
        }
        text.map(str::to_owned)
    }

    /// A string or a list of strings, each with its path; `None` if the key is not
    /// there or holds something else.
    pub fn strings(&mut self, key: &'static str, single: bool) -> Option<Vec<(String, String)>> {
        let path = self.path_of(key);
        let value = self.take(key)?;
        let wanted = if single { "a string or a list of strings" } else { "a list of strings" };
        let example = format!("{key} = [\"…\", \"…\"]");
        match value.get_ref() {
            DeValue::String(text) if single => Some(vec![(path, text.to_string())]),
            DeValue::Array(items) => {
                let mut strings = Vec::new();
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    self.problems.learn(&path, item.span());
                    match item.get_ref().as_str() {
                        Some(text) => strings.push((path, text.to_owned())),
                        None => self.mistyped(&path, item, "a string", &example),
                    }
                }
                Some(strings)
            }
            _ => {
                self.mistyped(&path, value, wanted, &example);
                None
            }
        }
    }

    /// An integer inside `range`, or `default` if the key is not there.
    pub fn integer(&mut self, key: &'static str, default: u32, range: RangeInclusive<u32>) -> u32 {
        match self.take(key) {
            Some(value) => self.as_integer(key, value, &range).unwrap_or(default),
            None => default,
        }
    }

    /// An integer inside `range` that must be there.
    pub fn required_integer(&mut self, key: &'static str, range: RangeInclusive<u32>) -> u32 {
        let example = range.start().to_string();
        let value = self.required(key, &example);
        value.and_then(|value| self.as_integer(key, value, &range)).unwrap_or(*range.start())
    }

    fn as_integer(&self, key: &str, value: &Value<'_>, range: &RangeInclusive<u32>) -> Option<u32> {
        let path = self.path_of(key);
        let (low, high) = (range.start(), range.end());
        let Some(integer) = value.get_ref().as_integer() else {
            self.mistyped(&path, value, "an integer", &format!("{key} = {low}, without quotes"));
            return None;
        };
        let number = i128::from_str_radix(integer.as_str(), integer.radix());
        let inside = number.ok().and_then(|n| u32::try_from(n).ok()).filter(|n| range.contains(n));
        if inside.is_none() {
            let what = format!("{} is out of range", integer.as_str());
            let mend = format!("write an integer from {low} to {high}");
            self.problems.at(value.span().start, &path, what, mend);
        }
        inside
    }

    /// A boolean, or `default` if the key is not there.
    pub fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        let Some(value) = self.take(key) else { return default };
        value.get_ref().as_bool().unwrap_or_else(|| {
            let example = format!("{key} = {}", !default);
            self.mistyped(&self.path_of(key), value, "a boolean", &example);
            default
        })
    }

    /// An absolute path; `default` if the key is not there, and missing without one.
    pub fn path(&mut self, key: &'static str, default: Option<&str>, example: &str) -> PathBuf {
        let value = match default {
            Some(_) => self.take(key),
            None => self.required(key, example),
        };
        let text = self.as_string(key, value, example).or(default.map(str::to_owned));
        let text = text.unwrap_or_default();
        if value.is_some() && (!text.starts_with('/') || text.contains('\0')) {
            let what = format!("{text:?} is not an absolute path");
            self.wrong(key, what, format!("write the whole path, such as {example}"));
        }
        PathBuf::from(text)
    }

    /// The address of a host: no placeholder, group, or address that needs a scope.
    pub fn host_address(&mut self, key: &'static str, example: &str) -> IpAddr {
        let unread = IpAddr::from([0; 4]);
        let value = self.required(key, &format!("\"{example}\""));
        let path = self.path_of(key);
        self.as_string(key, value, &format!("\"{example}\""))
            .and_then(|text| host_address(self.problems, &path, &text))
            .unwrap_or(unread)
    }

    /// A table of strings.
    pub fn string_map(&mut self, key: &'static str) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        let inner = self.table(key);
        for (name, value) in inner.entries.into_iter().flatten() {
            let path = inner.path_of(name.get_ref());
            match value.get_ref().as_str() {
                Some(text) => {
                    self.problems.learn(&path, value.span());
                    map.insert(name.get_ref().to_string(), text.to_owned());
                }
                None => {
                    let example = format!("{} = \"…\", in quotes", name.get_ref());
                    inner.mistyped(&path, value, "a string", &example);
                }
            }
        }
        map
    }
}

/// Reads one address that clients or the peer can reach.
pub(super) fn host_address(problems: &Problems<'_>, path: &str, text: &str) -> Option<IpAddr> {
    let Ok(address) = text.parse::<IpAddr>() else {
        let mend = if text.contains('/') {
            "write the address without a prefix length"
        } else {
            "write an IPv4 or IPv6 address, such as \"192.0.2.10\" or \"2001:db8::10\""
        };
        problems.of(path, format!("{text:?} is not an IP address"), mend);
        return None;
    };
    let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let why = if address.is_unspecified() {
        "stands for every address"
    } else if address.is_loopback() {
        "never leaves this host"
    } else if address.is_multicast() || address == IpAddr::from([255; 4]) {
        "names a group of hosts"
    } else if link_local {
        "means nothing without its interface"
    } else if matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        "is an IPv4 address written as IPv6"
    } else {
        return Some(address);
    };
    problems.of(path, format!("{address} {why}"), "write an address that other hosts can reach");
    None
}

/// The known word that `word` was most likely meant to be.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |other: &str| edit_distance(word, other);
    let limit = (word.chars().count() / 3).max(1) + 1;
    known.iter().copied().filter(|k| distance(k) <= limit).min_by_key(|k| distance(k))
}

/// Levenshtein's distance: insertions, deletions and replacements.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
