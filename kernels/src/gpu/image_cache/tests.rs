use std::thread;

use super::*;

fn source(text: &'static str) -> Source {
    Source {
        name: "test.cu",
        text,
        defines: vec![("N", "1".to_owned())],
    }
}

fn id(text: &'static str) -> ImageId {
    ImageId::new(&source(text), "sm_90", Some("compiler 1"))
}

fn cache(folder: &Path, max_bytes: u64) -> ImageCache {
    ImageCache::new(Some(folder.to_owned()), None, max_bytes)
}

fn image(cache: &ImageCache, id: &ImageId) -> Option<Vec<u8>> {
    cache.get(id).map(|kept| kept.image)
}

/// The one file there is.
fn only_file(folder: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert_eq!(files.len(), 1);
    files.remove(0).unwrap().path()
}

#[test]
fn what_was_put_is_got_by_the_same_id_and_by_no_other() {
    let folder = tempfile::tempdir().unwrap();
    // Not there yet: it is made.
    let cache = cache(&folder.path().join("a/b"), MAX_BYTES);
    assert!(cache.get(&id("x")).is_none());
    cache.put(&id("x"), b"image");
    assert_eq!(image(&cache, &id("x")).unwrap(), b"image");

    let other_define = Source {
        defines: vec![("N", "2".to_owned())],
        ..source("x")
    };
    for other in [
        id("y"),
        ImageId::new(&other_define, "sm_90", Some("compiler 1")),
        ImageId::new(&source("x"), "sm_80", Some("compiler 1")),
        ImageId::new(&source("x"), "sm_90", Some("compiler 2")),
    ] {
        assert!(cache.get(&other).is_none(), "{other:?}");
    }
}

#[test]
fn without_a_compiler_what_any_made_will_do() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), MAX_BYTES);
    cache.put(&id("x"), b"image");
    let any = ImageId::new(&source("x"), "sm_90", None);
    assert_eq!(image(&cache, &any).unwrap(), b"image");
    assert!(
        cache
            .get(&ImageId::new(&source("y"), "sm_90", None))
            .is_none()
    );
    // And nothing is kept under the name of none.
    cache.put(&ImageId::new(&source("y"), "sm_90", None), b"image");
    only_file(folder.path());
}

#[test]
fn any_damage_is_noticed_and_the_file_goes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), MAX_BYTES);
    cache.put(&id("x"), b"image");
    let file = only_file(folder.path());
    let whole = fs::read(&file).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(cache.get(&id("x")).is_none(), "byte {at}");
        assert!(!file.exists(), "byte {at}");
    }
    for len in 0..whole.len() {
        fs::write(&file, &whole[..len]).unwrap();
        assert!(cache.get(&id("x")).is_none(), "{len} bytes");
    }
    fs::write(&file, whole).unwrap();
    assert_eq!(image(&cache, &id("x")).unwrap(), b"image");
}

#[test]
fn a_file_under_the_name_of_another_chip_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), MAX_BYTES);
    cache.put(&id("x"), b"image");
    let other = ImageId::new(&source("x"), "sm_80", Some("compiler 1"));
    let (start, end) = other.name();
    fs::rename(
        only_file(folder.path()),
        folder.path().join(start + &end.unwrap()),
    )
    .unwrap();
    assert!(cache.get(&other).is_none());
}

#[test]
fn many_writers_and_readers_at_once_see_whole_images() {
    let folder = tempfile::tempdir().unwrap();
    let big: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let cache = cache(folder.path(), MAX_BYTES);
                for _ in 0..20 {
                    cache.put(&id("x"), &big);
                    assert_eq!(image(&cache, &id("x")).as_ref(), Some(&big));
                }
            });
        }
    });
    only_file(folder.path());
}

#[test]
fn what_was_of_use_longest_ago_goes_when_there_are_too_many_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), 2500);
    let age = |id: &ImageId, seconds: u64| {
        let file = files_of(folder.path(), id).remove(0);
        let time = SystemTime::now() - Duration::from_secs(seconds);
        let file = File::options().append(true).open(file).unwrap();
        file.set_modified(time).unwrap();
    };
    let (a, b, c) = (id("a"), id("b"), id("c"));
    cache.put(&a, &[1; 1000]);
    age(&a, 200);
    cache.put(&b, &[2; 1000]);
    age(&b, 100);
    // Of use now, so the other one is the older.
    assert!(cache.get(&a).is_some());
    let left = folder.path().join(format!("x{UNFINISHED}"));
    fs::write(&left, b"half").unwrap();
    let long_ago = SystemTime::now() - 2 * ABANDONED;
    File::options()
        .append(true)
        .open(&left)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    cache.put(&c, &[3; 1000]);
    assert!(cache.get(&a).is_some() && cache.get(&b).is_none() && cache.get(&c).is_some());
    assert!(!left.exists());
    // The newest stays even where it alone is too large.
    cache.put(&b, &[2; 5000]);
    assert!(cache.get(&a).is_none() && cache.get(&b).is_some() && cache.get(&c).is_none());
}

#[test]
fn a_folder_that_cannot_be_written_keeps_nothing_and_the_read_only_one_is_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"no folder").unwrap();
    cache(folder.path(), MAX_BYTES).put(&id("x"), b"image");
    let second = ImageCache::new(Some(file), Some(folder.path().to_owned()), MAX_BYTES);
    second.put(&id("y"), b"image");
    assert!(second.get(&id("y")).is_none());
    let kept = second.get(&id("x")).unwrap();
    // It is not ours to delete.
    second.reject(&kept);
    assert!(second.get(&id("x")).is_some());
}
