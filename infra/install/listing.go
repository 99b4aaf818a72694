package install

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// listing is the files of a package before any of them is written: their names and sizes, held
// against the rules. Archives and directories of mirrors pass through the same ones.
type listing struct {
	limits Limits
	size   int64 // bytes in all
	most   int64 // how many there may be
	files  []string
	spots  map[string]spot // by name in lower case
}

// spot is what is at a path.
type spot struct {
	name string
	dir  bool
}

// maxDepth is how many directories there may be for each file.
const maxDepth = 4

// newListing takes the size of the archive that the files come from, 0 if from none.
func newListing(limits Limits, archive int64) *listing {
	l := &listing{limits: limits, most: limits.Total, spots: map[string]spot{}}
	if archive > 0 && archive < limits.Total/limits.Ratio {
		l.most = archive * limits.Ratio
	}
	return l
}

// add puts a file on the list.
func (l *listing) add(name string, size int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(l.files) >= l.limits.Files {
		return fmt.Errorf("%w: the package has more than %d files", ErrRefused, l.limits.Files)
	}
	if size < 0 || size > l.limits.File {
		return fmt.Errorf("%w: file %q is larger than the limit of %d bytes", ErrRefused, short(name), l.limits.File)
	}
	if l.size += size; l.size > l.most {
		return fmt.Errorf("%w: the package is larger than %d bytes in all, or more than %d times larger than its archive",
			ErrRefused, l.limits.Total, l.limits.Ratio)
	}
	l.files = append(l.files, name)
	return l.occupy(name, false)
}

// addDirectory looks at the name of a directory. Directories are made as files need them.
func (l *listing) addDirectory(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return l.occupy(name, true)
}

// occupy refuses what is there twice: in the same letters, in letters that a file system may take
// for the same, or once as a file and once as a directory.
func (l *listing) occupy(name string, dir bool) error {
	for at, isDir := name, dir; at != "."; at, isDir = path.Dir(at), true {
		key := strings.ToLower(at)
		there, taken := l.spots[key]
		if taken && (there.name != at || !there.dir || !isDir) {
			return fmt.Errorf("%w: %q and %q are in one place", ErrRefused, short(there.name), short(name))
		}
		if taken {
			return nil
		}
		if l.spots[key] = (spot{at, isDir}); len(l.spots) > maxDepth*l.limits.Files {
			return fmt.Errorf("%w: the package has more than %d files and directories", ErrRefused, maxDepth*l.limits.Files)
		}
	}
	return nil
}

// checkName refuses names that lead anywhere but below, on any system, and such that do not
// look like what they are.
func checkName(name string) error {
	if name == "" || len(name) > 1024 {
		return fmt.Errorf("%w: a file has no name, or one of more than 1024 characters", ErrRefused)
	}
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || strings.IndexByte(`\:*?"<>|`, c) >= 0 {
			return fmt.Errorf("%w: file %q has a character in its name that is not plain in all file systems", ErrRefused, short(name))
		}
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == "" || element == "." || element == ".." || len(element) > 255 {
			return fmt.Errorf("%w: the name %q is no plain path below a directory", ErrRefused, short(name))
		}
		if last := element[len(element)-1]; last == ' ' || last == '.' {
			return fmt.Errorf("%w: file %q has a name that ends with a space or a dot", ErrRefused, short(name))
		}
	}
	return nil
}

// executable finds the program among files, by OpenTofu's rule: at the top,
// terraform-provider-TYPE and then nothing, or anything after _ or a dot. Of two OpenTofu takes
// the first; which is meant, nobody knows.
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
		return "", fmt.Errorf("%w: the package has no file terraform-provider-%s… at its top", ErrRefused, typeName)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: the package has several programs: %s", ErrRefused, short(strings.Join(found, ", ")))
}
