package packages

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// listing is the list of a package's files, with names and sizes, which is checked before any file
// is written. Archives and directories of mirrors obey the same rules.
type listing struct {
	limits   Limits
	size     int64 // total bytes
	maxTotal int64 // limit of size
	files    []string
	entries  map[string]listed // by lower-case name
}

// listed is a file or directory in a listing.
type listed struct {
	name string
	dir  bool
}

// maxDepth is the permitted number of directories per file.
const maxDepth = 4

// newListing returns an empty listing. Archive is the size of the archive that the files come from,
// or 0.
func newListing(limits Limits, archive int64) *listing {
	l := &listing{limits: limits, maxTotal: limits.Total, entries: map[string]listed{}}
	if archive > 0 && archive < limits.Total/limits.Ratio {
		l.maxTotal = archive * limits.Ratio
	}
	return l
}

// add adds a file.
func (l *listing) add(name string, size int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(l.files) >= l.limits.Files {
		return fmt.Errorf("%w: the package has more than %d files", ErrRefused, l.limits.Files)
	}
	if size < 0 || size > l.limits.File {
		return fmt.Errorf("%w: file %q is larger than the limit of %d bytes", ErrRefused, truncate(name), l.limits.File)
	}
	if l.size += size; l.size > l.maxTotal {
		return fmt.Errorf("%w: the package is larger than %d bytes in total, or more than %d times larger than its archive",
			ErrRefused, l.limits.Total, l.limits.Ratio)
	}
	l.files = append(l.files, name)
	return l.addPath(name, false)
}

// addDirectory checks the name of a directory. Directories are only created as files need them.
func (l *listing) addDirectory(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return l.addPath(name, true)
}

// addPath rejects duplicates: the same name, names that some file systems treat as the same, and a
// name for both a file and a directory.
func (l *listing) addPath(name string, dir bool) error {
	for at, isDir := name, dir; at != "."; at, isDir = path.Dir(at), true {
		key := strings.ToLower(at)
		there, taken := l.entries[key]
		if taken && (there.name != at || !there.dir || !isDir) {
			return fmt.Errorf("%w: %q and %q have the same path", ErrRefused, truncate(there.name), truncate(name))
		}
		if taken {
			return nil
		}
		if l.entries[key] = (listed{at, isDir}); len(l.entries) > maxDepth*l.limits.Files {
			return fmt.Errorf("%w: the package has more than %d files and directories", ErrRefused, maxDepth*l.limits.Files)
		}
	}
	return nil
}

// checkName rejects names that could lead out of the directory on any system, and names that are
// misleading.
func checkName(name string) error {
	if name == "" || len(name) > 1024 {
		return fmt.Errorf("%w: a file name is empty or longer than 1024 characters", ErrRefused)
	}
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || strings.IndexByte(`\:*?"<>|`, c) >= 0 {
			return fmt.Errorf("%w: the name of file %q has a character that is not portable", ErrRefused, truncate(name))
		}
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == "" || element == "." || element == ".." || len(element) > 255 {
			return fmt.Errorf("%w: the name %q is not a clean relative path", ErrRefused, truncate(name))
		}
		if last := element[len(element)-1]; last == ' ' || last == '.' {
			return fmt.Errorf("%w: file %q has a name that ends with a space or a dot", ErrRefused, truncate(name))
		}
	}
	return nil
}

// executable finds the program among files, by OpenTofu's rule: in the top directory, named
// terraform-provider-TYPE, optionally followed by _ or a dot and anything. If there are several,
// OpenTofu takes the first. Here that is an error, because the intended one is unknown.
func executable(files []string, typeName string) (string, error) {
	var found []string
	for _, name := range files {
		rest, ok := strings.CutPrefix(name, "terraform-provider-"+typeName)
		if ok && !strings.Contains(name, "/") && (rest == "" || rest[0] == '_' || rest[0] == '.') {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: the package has no file terraform-provider-%s… in its top directory", ErrRefused, typeName)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: the package has several programs: %s", ErrRefused, truncate(strings.Join(found, ", ")))
}
