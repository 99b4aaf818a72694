package packages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// FilesystemMirror is a directory in OpenTofu's layout: archives as
// HOST/NAMESPACE/TYPE/terraform-provider-TYPE_VERSION_OS_ARCH.zip and unpacked packages as
// HOST/NAMESPACE/TYPE/VERSION/OS_ARCH/. If a package exists in both forms, the archive is used,
// because both kinds of digest can identify it.
type FilesystemMirror struct {
	// Directory is the directory of the mirror. Links in it may lead elsewhere within it, but not
	// out of it.
	Directory string
}

func (m FilesystemMirror) String() string { return "filesystem mirror " + m.Directory }

// Versions returns the versions for all platforms, derived from file and directory names.
func (m FilesystemMirror) Versions(_ context.Context, source Address) ([]Version, error) {
	if err := source.check(); err != nil {
		return nil, err
	}
	all, err := m.list(source)
	if err != nil {
		return nil, err
	}
	var versions []Version
	for _, one := range all {
		versions = append(versions, one.version)
	}
	if len(versions) == 0 {
		return nil, fmt.Errorf("%w: %s has no packages of %s", ErrNotFound, m, source)
	}
	return sortVersions(versions), nil
}

// Find prefers an archive.
func (m FilesystemMirror) Find(_ context.Context, p Package) (Found, error) {
	if err := p.check(); err != nil {
		return Found{}, err
	}
	all, err := m.list(p.Source)
	if err != nil {
		return Found{}, err
	}
	found := Found{Signature: Signature{State: SignatureNone}}
	for _, one := range all {
		switch {
		case one.version != p.Version || one.platform != p.Platform:
		case one.archive:
			found.Root, found.Archive, found.Directory = m.Directory, one.path, ""
			return found, nil
		default:
			found.Root, found.Directory = m.Directory, one.path
		}
	}
	if found.Directory == "" {
		at := path.Join(p.Source.String(), p.archiveName())
		return Found{}, fmt.Errorf("%w: %s has no %s; looked for the file %s and the directory %s",
			ErrNotFound, m, p, at, path.Join(p.Source.String(), string(p.Version), p.Platform.String()))
	}
	return found, nil
}

// mirrorPackage is one package in a mirror.
type mirrorPackage struct {
	version  Version
	platform Platform
	archive  bool
	path     string // below the mirror
}

// list returns the mirror's packages of a provider. Files that are not named like packages are
// ignored: mirrors have other files too.
func (m FilesystemMirror) list(source Address) ([]mirrorPackage, error) {
	root, err := os.OpenRoot(m.Directory)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m, err)
	}
	defer func() { _ = root.Close() }() // nothing was written
	tree, at := root.FS(), source.String()
	entries, err := fs.ReadDir(tree, at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m, err)
	}
	var all []mirrorPackage
	for _, entry := range entries {
		name := path.Join(at, entry.Name())
		info, err := fs.Stat(tree, name) // follows links
		if err != nil {
			continue
		}
		if !info.IsDir() {
			if one, ok := parseArchiveName(source, entry.Name()); ok && info.Mode().IsRegular() {
				one.path = name
				all = append(all, one)
			}
			continue
		}
		if version, err := ParseVersion(entry.Name()); err == nil {
			all = append(all, unpacked(tree, name, version)...)
		}
	}
	return all, nil
}

func unpacked(tree fs.FS, at string, version Version) (all []mirrorPackage) {
	entries, err := fs.ReadDir(tree, at)
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		name := path.Join(at, entry.Name())
		platform, err := ParsePlatform(entry.Name())
		if err != nil {
			continue
		}
		if info, err := fs.Stat(tree, name); err == nil && info.IsDir() {
			all = append(all, mirrorPackage{version: version, platform: platform, path: name})
		}
	}
	return all
}

// parseArchiveName parses version and platform from a file name. Case is ignored, because archives
// are copied over file systems that do not preserve it.
func parseArchiveName(source Address, name string) (mirrorPackage, bool) {
	rest, ok := strings.CutPrefix(strings.ToLower(name), "terraform-provider-"+source.Type+"_")
	rest, zip := strings.CutSuffix(rest, ".zip")
	number, target, _ := strings.Cut(rest, "_")
	version, errVersion := ParseVersion(number)
	platform, errPlatform := ParsePlatform(target)
	return mirrorPackage{version: version, platform: platform, archive: true}, ok && zip && errVersion == nil && errPlatform == nil
}
