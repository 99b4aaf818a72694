package packages

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// Installer installs packages into a store. It is safe for concurrent use.
type Installer struct {
	store  *Store
	client *Client
	limits Limits
}

// New creates an Installer. The client downloads archives.
func New(store *Store, client *Client, limits Limits) *Installer {
	return &Installer{store: store, client: client, limits: limits.withDefaults()}
}

// Request is an installation request.
type Request struct {
	Package Package
	// Origin is used if the store does not have the package.
	Origin Origin
	// Digests are the required digests, of which the package must have one. They may include those
	// of other platforms. If empty, nothing is installed, and the error has the package's digest.
	Digests []Digest
	// Progress, if not nil, is called at intervals by the installing goroutine.
	Progress func(StepProgress)
}

// Installed is a package that is ready to run.
type Installed struct {
	// Executable is the path of the program, Directory that of the whole package.
	Executable, Directory string
	// Content (h1:) and Archive (zh:) are the package's digests; Archive is "" if there was no
	// archive. Matched is the required digest that matched.
	Content, Archive, Matched Digest
	// Signature is the result of verifying the signature when the package was fetched.
	Signature Signature
	// From is the origin that the package was fetched from.
	From string
	// Stored is set if the package was in the store, so that no origin was contacted.
	Stored bool
	// Development is set for an unverified program, which has no digests.
	Development bool
}

// Install returns a package that has one of the required digests. It takes the package from the
// store if it is there and unmodified, and else from the origin. It can be called before each use,
// and repeated. A failure leaves nothing in the store.
func (i *Installer) Install(ctx context.Context, request Request) (Installed, error) {
	if err := request.Package.check(); err != nil {
		return Installed{}, err
	}
	for _, d := range request.Digests {
		if _, err := ParseDigest(string(d)); err != nil {
			return Installed{}, err
		}
	}
	timedOut := fmt.Errorf("the installation took longer than %s", i.limits.Time)
	ctx, cancel := context.WithTimeoutCause(ctx, i.limits.Time, timedOut)
	defer cancel()
	installed, err := i.install(ctx, request, &meter{report: request.Progress})
	if err != nil {
		return Installed{}, fmt.Errorf("installing %s: %w", request.Package, err)
	}
	return installed, nil
}

func (i *Installer) install(ctx context.Context, request Request, progress *meter) (Installed, error) {
	installed, unusable := i.fromStore(ctx, request, progress)
	if unusable == nil || ctx.Err() != nil {
		return installed, unusable
	}
	found, err := request.Origin.Find(ctx, request.Package)
	if err != nil && !errors.Is(unusable, ErrNotFound) {
		// Not wrapped, because that may be ErrRefused: with another answer of the origin the
		// installation may succeed.
		return Installed{}, fmt.Errorf("%w; the package in the store is not usable: %v", err, unusable)
	}
	if err != nil {
		return Installed{}, err
	}
	st, err := i.store.stage()
	if err != nil {
		return Installed{}, err
	}
	installed, err = i.fetch(ctx, st, request, found, progress)
	return installed, errors.Join(err, st.close())
}

// fromStore returns the package if it is in the store. After any error it has to be fetched.
func (i *Installer) fromStore(ctx context.Context, request Request, progress *meter) (Installed, error) {
	r, ok := i.store.readRecord(recordPath(request.Package))
	matched, named := r.matches(request.Digests)
	if !ok || !named {
		return Installed{}, ErrNotFound
	}
	c, err := i.store.verify(ctx, r.Content, progress)
	if err != nil {
		return Installed{}, err
	}
	if program, err := executable(c.files, request.Package.Source.Type); err != nil || program != c.program {
		return Installed{}, errors.Join(err, ErrRefused)
	}
	installed := i.describe(c, r, matched)
	installed.Stored = true
	return installed, nil
}

// fetch brings a package into the stage, checks it, and moves it into the store.
func (i *Installer) fetch(ctx context.Context, st *stage, request Request, found Found, progress *meter) (Installed, error) {
	content, err := st.content()
	if err != nil {
		return Installed{}, err
	}
	defer func() { _ = content.Close() }() // the files in it are closed
	j := &digestCheck{request: request, found: found}
	if found.Directory != "" {
		err = i.fetchDirectory(ctx, content, j, progress)
	} else {
		err = i.fetchArchive(ctx, st, content, j, progress)
	}
	if err != nil {
		return Installed{}, err
	}
	c, err := read(ctx, content, progress)
	if err != nil {
		return Installed{}, err
	}
	matched, err := j.checkContent(c.digest)
	if err != nil {
		return Installed{}, err
	}
	r := record{Content: c.digest, Archive: j.archive, Signature: found.Signature, From: request.Origin.String()}
	if err := i.store.put(ctx, st, c, r, request.Package); err != nil {
		return Installed{}, err
	}
	return i.describe(c, r, matched), nil
}

// content creates the directory into which a package is unpacked.
func (st *stage) content() (*os.Root, error) {
	name := path.Join(st.name, contentName)
	if err := st.store.root.Mkdir(name, ownMode); err != nil {
		return nil, err
	}
	return st.store.root.OpenRoot(name)
}

func (i *Installer) fetchDirectory(ctx context.Context, content *os.Root, j *digestCheck, progress *meter) error {
	mirror, err := os.OpenRoot(j.found.Root)
	if err != nil {
		return err
	}
	defer func() { _ = mirror.Close() }() // read only
	from, err := fs.Sub(mirror.FS(), j.found.Directory)
	if err != nil {
		return err
	}
	return copyPackage(ctx, from, content, j.request.Package.Source.Type, i.limits, progress)
}

// fetchArchive copies the archive first: if others can write to it, it could change between the
// check and unpacking.
func (i *Installer) fetchArchive(ctx context.Context, st *stage, content *os.Root, j *digestCheck, progress *meter) error {
	file, err := st.store.root.OpenFile(path.Join(st.name, archiveName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // the stage is removed
	if j.found.URL != nil {
		err = i.client.download(ctx, j.found.URL, file, i.limits, progress)
	} else {
		err = copyArchive(ctx, j.found, file, i.limits, progress)
	}
	if err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, &contextReader{ctx, io.NewSectionReader(file, 0, size)}); err != nil {
		return err
	}
	if err := j.checkArchive(newDigest(archiveScheme, hash.Sum(nil))); err != nil {
		return err
	}
	return unpack(ctx, file, size, content, j.request.Package.Source.Type, i.limits, progress)
}

func copyArchive(ctx context.Context, found Found, into *os.File, limits Limits, progress *meter) error {
	mirror, err := os.OpenRoot(found.Root)
	if err != nil {
		return err
	}
	defer func() { _ = mirror.Close() }() // read only
	from, err := mirror.Open(found.Archive)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // read only
	info, err := from.Stat()
	if err != nil {
		return err
	}
	progress.start("copy", 0, info.Size())
	n, err := io.Copy(&meteredWriter{into, progress}, io.LimitReader(&contextReader{ctx, from}, limits.Archive+1))
	if err == nil && n > limits.Archive {
		err = fmt.Errorf("%w: the archive is larger than the limit of %d bytes", ErrRefused, limits.Archive)
	}
	return err
}

// describe describes a package in the store.
func (i *Installer) describe(c contents, r record, matched Digest) Installed {
	dir := i.store.Directory(c.digest)
	return Installed{
		Executable: filepath.Join(dir, c.program), Directory: dir,
		Content: r.Content, Archive: r.Archive, Matched: matched, Signature: r.Signature, From: r.From,
	}
}

// Develop returns a program of a developer at its own path, so that each use runs the latest build.
// It verifies nothing, so no digest can be required.
func Develop(program string) (Installed, error) {
	if !filepath.IsAbs(program) {
		return Installed{}, fmt.Errorf("%w: the path %q of the development program is not absolute", ErrInvalid, program)
	}
	info, err := os.Stat(program)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Installed{}, fmt.Errorf("%w: program %s does not exist", ErrNotFound, program)
	case err != nil:
		return Installed{}, err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return Installed{}, fmt.Errorf("%w: %s is not an executable file (chmod +x)", ErrInvalid, program)
	}
	return Installed{
		Executable: program, Directory: filepath.Dir(program), Development: true,
		Signature: Signature{State: SignatureNone}, From: "development",
	}, nil
}

// digestCheck compares a package's digests with those that are required, and those that the origin
// claims.
type digestCheck struct {
	request Request
	found   Found
	archive Digest // digest of the archive, if any
}

// checkArchive accepts an archive if it has one of the digests, or if its content may still have
// one.
func (j *digestCheck) checkArchive(archive Digest) error {
	j.archive = archive
	open := func(digests []Digest) bool {
		return slices.Contains(digests, archive) || slices.ContainsFunc(digests, Digest.isContent)
	}
	if !open(j.request.Digests) {
		return &DigestError{Found: []Digest{archive}, Required: j.request.Digests}
	}
	if len(j.found.Claimed) > 0 && !open(j.found.Claimed) {
		return &DigestError{Found: []Digest{archive}, Required: j.found.Claimed, Origin: true}
	}
	return nil
}

// checkContent returns the required digest that the package has.
func (j *digestCheck) checkContent(content Digest) (Digest, error) {
	r := record{Content: content, Archive: j.archive}
	found := []Digest{content}
	if j.archive != "" {
		found = append(found, j.archive)
	}
	if _, ok := r.matches(j.found.Claimed); !ok && len(j.found.Claimed) > 0 {
		return "", &DigestError{Found: found, Required: j.found.Claimed, Origin: true}
	}
	matched, ok := r.matches(j.request.Digests)
	if !ok {
		return "", &DigestError{Found: found, Required: j.request.Digests}
	}
	return matched, nil
}

// DigestError reports a package that has none of the digests. It matches ErrRefused.
type DigestError struct {
	// Found has the package's digests: that of the archive, of the content, or both.
	Found []Digest
	// Required has the digests of which the package must have one.
	Required []Digest
	// Origin is set if Required is what the origin claims.
	Origin bool
}

func (e *DigestError) Error() string {
	found := string(e.Found[0])
	for _, d := range e.Found[1:] {
		found += ", " + string(d)
	}
	switch {
	case e.Origin:
		return fmt.Sprintf("refused: the package has the digest %s, which is not among the digests claimed by its origin; the package is damaged or was replaced", found)
	case len(e.Required) == 0:
		return fmt.Sprintf("refused: no digest is required; the package has %s: require that digest if you trust the package", found)
	}
	return fmt.Sprintf("refused: the package has the digest %s, which is none of the %d required digests; add it only if you trust the package",
		found, len(e.Required))
}

// Is reports whether target is ErrRefused.
func (e *DigestError) Is(target error) bool { return target == ErrRefused }
