package packages

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// unpack writes the files of an archive into an empty directory. It checks the archive's directory
// before it writes the first file, and enforces the announced sizes while writing.
func unpack(ctx context.Context, archive io.ReaderAt, size int64, into *os.Root, typeName string, limits Limits, progress *meter) error {
	reader, err := openArchive(archive, size, limits)
	if err != nil {
		return err
	}
	list := newListing(limits, size)
	var files []*zip.File
	for _, file := range reader.File {
		if err := checkEntry(file); err != nil {
			return err
		}
		if name, dir := strings.CutSuffix(file.Name, "/"); dir {
			if file.UncompressedSize64 > 0 {
				return fmt.Errorf("%w: directory %q has content", ErrRefused, truncate(file.Name))
			}
			if err := list.addDirectory(name); err != nil {
				return err
			}
			continue
		}
		if file.UncompressedSize64 > uint64(limits.File) {
			return fmt.Errorf("%w: file %q is larger than the limit of %d bytes", ErrRefused, truncate(file.Name), limits.File)
		}
		if err := list.add(file.Name, int64(file.UncompressedSize64)); err != nil {
			return err
		}
		files = append(files, file)
	}
	program, err := executable(list.files, typeName)
	if err != nil {
		return err
	}
	progress.start("unpack", 0, list.size)
	for _, file := range files {
		content, err := file.Open()
		if err != nil {
			return unreadable(file.Name, err)
		}
		err = write(ctx, into, file.Name, content, int64(file.UncompressedSize64), modeOf(file.Name, program), progress)
		_ = content.Close() // read errors were reported
		if err != nil {
			return err
		}
	}
	return sealDirectories(into)
}

// openArchive reads the archive's directory. It reads no more than the permitted number of files
// needs.
func openArchive(archive io.ReaderAt, size int64, limits Limits) (*zip.Reader, error) {
	bounded := &limitedReaderAt{of: archive, left: int64(limits.Files)*1024 + 1<<20}
	reader, err := zip.NewReader(bounded, size)
	switch {
	case bounded.left < 0:
		return nil, fmt.Errorf("%w: the archive's directory is too large for %d files", ErrRefused, limits.Files)
	case err != nil:
		return nil, fmt.Errorf("%w: reading the archive: %w", ErrRefused, err)
	}
	bounded.off = true
	return reader, nil
}

// limitedReaderAt fails after a number of bytes, until it is switched off.
type limitedReaderAt struct {
	of   io.ReaderAt
	left int64
	off  bool
}

func (a *limitedReaderAt) ReadAt(p []byte, at int64) (int, error) {
	if !a.off {
		if a.left -= int64(len(p)); a.left < 0 {
			return 0, errors.New("read limit exceeded")
		}
	}
	return a.of.ReadAt(p, at)
}

// checkEntry rejects everything but regular files and directories.
func checkEntry(file *zip.File) error {
	const encrypted = 1
	mode := file.Mode()
	switch isDir := strings.HasSuffix(file.Name, "/"); {
	case file.Flags&encrypted != 0:
		return fmt.Errorf("%w: file %q is encrypted", ErrRefused, truncate(file.Name))
	case file.Method != zip.Store && file.Method != zip.Deflate:
		return fmt.Errorf("%w: file %q has compression method %d; supported are 0 (store) and 8 (deflate)", ErrRefused, truncate(file.Name), file.Method)
	case mode.IsDir() != isDir:
		return fmt.Errorf("%w: %q is a directory either by its name or by its mode, but not both", ErrRefused, truncate(file.Name))
	case !isDir && !mode.IsRegular():
		return fmt.Errorf("%w: %q is not a regular file (%s)", ErrRefused, truncate(file.Name), mode.Type())
	}
	return nil
}

const (
	programMode   = fs.FileMode(0o555)
	fileMode      = fs.FileMode(0o444)
	directoryMode = fs.FileMode(0o555)
	ownMode       = fs.FileMode(0o755) // of a directory while it is written
)

func modeOf(name, program string) fs.FileMode {
	if name == program {
		return programMode
	}
	return fileMode
}

// write creates a file of exactly the announced size.
func write(ctx context.Context, into *os.Root, name string, content io.Reader, size int64, mode fs.FileMode, progress *meter) error {
	if dir := path.Dir(name); dir != "." {
		if err := into.MkdirAll(dir, ownMode); err != nil {
			return err
		}
	}
	file, err := into.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(&meteredWriter{file, progress}, io.LimitReader(&contextReader{ctx, content}, size+1))
	var local *os.PathError
	switch {
	case err == nil && n != size:
		err = fmt.Errorf("%w: file %q does not have the announced size", ErrRefused, truncate(name))
	case err != nil && ctx.Err() == nil && !errors.As(err, &local):
		err = unreadable(name, err)
	}
	if err == nil {
		err = file.Chmod(mode)
	}
	return errors.Join(err, file.Close())
}

func unreadable(name string, err error) error {
	return fmt.Errorf("%w: reading file %q: %w", ErrRefused, truncate(name), err)
}

// contextReader is a reader that ends with its context.
type contextReader struct {
	ctx  context.Context
	from io.Reader
}

func (i *contextReader) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.from.Read(p)
}

// sealDirectories makes all directories below the top read-only. The top directory must be writable
// until it is in its place, because moving a directory writes to it.
func sealDirectories(root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || name == "." {
			return err
		}
		return root.Chmod(name, directoryMode)
	})
}

// copyPackage copies an unpacked package of a mirror into an empty directory, by the same rules.
// The digest of the copy detects concurrent changes.
func copyPackage(ctx context.Context, from fs.FS, into *os.Root, typeName string, limits Limits, progress *meter) error {
	list := newListing(limits, 0)
	sizes := map[string]int64{}
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return list.addDirectory(name)
		case !info.Mode().IsRegular():
			return fmt.Errorf("%w: %q is not a regular file (%s)", ErrRefused, truncate(name), info.Mode().Type())
		}
		sizes[name] = info.Size()
		return list.add(name, info.Size())
	})
	if err != nil {
		return err
	}
	program, err := executable(list.files, typeName)
	if err != nil {
		return err
	}
	progress.start("copy", 0, list.size)
	for _, name := range list.files {
		content, err := from.Open(name)
		if err != nil {
			return err
		}
		err = write(ctx, into, name, content, sizes[name], modeOf(name, program), progress)
		_ = content.Close() // read only
		if err != nil {
			return err
		}
	}
	return sealDirectories(into)
}
