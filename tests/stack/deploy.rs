//! What lies in `deploy`: nothing of it names a setting, a variable or a command that the program does not know.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::processes::{run, tandem};
use crate::set::Set;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
/// Read by the kernels alone, so that no help tells of it.
const KERNEL_CACHE: &str = "TANDEM_KERNEL_CACHE";

/// Files of a folder of `deploy` with one of the endings.
fn files(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let folder = Path::new(DEPLOY).join(folder);
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        path.is_file() && endings.iter().any(|ending| name.ends_with(ending))
    });
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn each_sample_configuration_is_one_that_all_roles_take() {
    for path in files("config", &[".toml"]) {
        let file = path.display();
        let mut tables: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let mut take = |name| tables.remove(name).unwrap();
        let target: target_worker::Config = take("target-worker").try_into().unwrap();
        let draft: draft_worker::Config = take("draft-worker").try_into().unwrap();
        let prefill: prefill_worker::Config = take("prefill-worker").try_into().unwrap();
        let mut router: router::Settings = take("router").try_into().unwrap();
        assert!(tables.is_empty(), "{file}: {tables:?}");
        // Compose files, units and `tandem up` say where the worker listens.
        router.prefill = Some(prefill.listen.clone());

        target.check().unwrap();
        draft.check().unwrap();
        prefill.check().unwrap();
        router.draft_gives_way().unwrap();
        router.target_residency().unwrap();
        router.clone().check().unwrap();
        // Roles in containers of their own know of each other only what the file says to each.
        assert_eq!(draft.model, target.model, "{file}");
        assert_eq!(router.model, target.model, "{file}");
        assert_eq!(router.prefill_drafter, prefill.drafter, "{file}");
        assert!(draft.parallel >= target.parallel, "{file}");
        assert_eq!(
            target.stages.len() + 1,
            target.devices.len().max(1),
            "{file}"
        );
        assert_eq!(
            router.draft_residency == "persistent",
            prefill.skip_park == Some(true),
            "{file}"
        );
    }
}

#[test]
fn the_demo_configuration_serves() {
    let demo = format!("{DEPLOY}/config/demo.toml");
    let set = Set::start(&["--config", &demo]);
    set.client().complete("def add(a, b):", 8);
    let shortens = &set.client().get("/props").ok()["compression"]["mode"];
    assert_eq!(shortens, "auto");
    set.pid("prefill-worker");
    assert!(set.stop().success());
}

#[test]
fn each_variable_that_is_set_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let roles = [
        "router",
        "target-worker",
        "target-stage",
        "draft-worker",
        "prefill-worker",
    ];
    let mut known: BTreeSet<String> = roles
        .iter()
        .flat_map(|role| variables(&run(tandem(dir.path(), &[role, "--help"])).stdout))
        .collect();
    known.insert(KERNEL_CACHE.to_owned());
    let composes = files("", &[".yaml", "Dockerfile"]).into_iter();
    for path in composes.chain(files("systemd", &[".service"])) {
        let text = fs::read_to_string(&path).unwrap();
        let is_set = |line: &&str| {
            let line = line.trim_start();
            line.starts_with("TANDEM_")
                || line.starts_with("ENV ")
                || line.starts_with("Environment=")
        };
        for variable in text.lines().filter(is_set).flat_map(variables) {
            assert!(known.contains(&variable), "{}: {variable}", path.display());
        }
    }
}

/// Names of settings' variables that stand in a text, as what is set and not as what is used.
fn variables(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let words = text.match_indices("TANDEM_").filter_map(|(at, _)| {
        let name: String = text[at..].chars().take_while(|c| is_part(*c)).collect();
        (!text[..at].ends_with("${")).then_some(name)
    });
    words.collect()
}

#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for folder in [
        "",
        "tandem@router.service.d",
        "tandem@target-stage.service.d",
    ] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
        for path in files(
            &format!("systemd/{folder}"),
            &[".service", ".target", ".conf"],
        ) {
            // The program has to be there; where it will be it is not yet.
            let text = fs::read_to_string(&path).unwrap();
            let text = text.replace("/usr/local/bin/tandem", env!("CARGO_BIN_EXE_tandem"));
            let to = dir.path().join(folder).join(path.file_name().unwrap());
            fs::write(to, text).unwrap();
        }
    }
    let units = ["router", "target-worker", "target-stage", "draft-worker"];
    let units = units.map(|role| format!("tandem@{role}.service"));
    let verified = Command::new("systemd-analyze")
        .args(["verify", "tandem.target"])
        .args(&units)
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");
    // On its scale of 0 (all is forbidden) to 10.
    let secured = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=25"])
        .args(&units)
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&secured.stdout);
    assert!(secured.status.success(), "{said}");
}
