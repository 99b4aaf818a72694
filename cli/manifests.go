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
)

// manifests are files with objects, as kubectl takes them.
type manifests struct {
	files     []string
	recursive bool
}

func (m *manifests) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVarP(&m.files, "filename", "f", nil, "File, or directory of files, with objects that would be applied; - is standard input. Can be given again.")
	flags.BoolVarP(&m.recursive, "recursive", "R", false, "Also the directories within a directory.")
}

// read gives the objects of all files, in their order. Nothing, if no file is named.
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
		return nil, fmt.Errorf("there are no objects in %s: name files with objects in YAML or JSON", few(m.files))
	}
	return out, nil
}

// filesAt gives the file, or those of the directory whose names say that they are manifests.
func (m *manifests) filesAt(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, unreadable(err)
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
