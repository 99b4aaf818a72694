package cli

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/fleet/names"
)

// manifests are files with objects, in the forms that kubectl accepts.
type manifests struct {
	files     []string
	recursive bool
}

func (m *manifests) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVarP(&m.files, "filename", "f", nil, "File or directory with the objects that would be applied; - is standard input. Can be repeated.")
	flags.BoolVarP(&m.recursive, "recursive", "R", false, "Process directories recursively.")
}

// read returns the objects of all files, in order, or none if no file was passed.
func (m *manifests) read(in io.Reader) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, name := range m.files {
		files, err := m.filesAt(name)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			objects, err := readObjects(file, in)
			if err != nil {
				return nil, err
			}
			out = append(out, objects...)
		}
	}
	if len(m.files) > 0 && len(out) == 0 {
		return nil, fmt.Errorf("no objects in %s: pass files with objects in YAML or JSON", names.List(m.files))
	}
	return out, nil
}

// filesAt returns the file, or the directory's files with the extension of a manifest.
func (m *manifests) filesAt(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, fileFlagError(err)
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	var out []string
	err = filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && !m.recursive:
			return fs.SkipDir
		case !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			out = append(out, path)
		}
		return nil
	})
	return out, err
}
