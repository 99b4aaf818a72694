package install

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

// Installer brings packages into a store. It is safe for concurrent use.
type Installer struct {
	store  *Store
	client *Client
	limits Limits
}

// New makes one. The client is for archives that an origin has elsewhere.
func New(store *Store, client *Client, limits Limits) *Installer {
	return &Installer{store: store, client: client, limits: limits.orDefaults()}
}

// Request says what to install.
type Request struct {
	Package Package
	// Origin has it, if the store does not.
	Origin Origin
	// Digests of which the package has to have one. They may name other platforms' packages
	// too. With none, nothing is installed, and the error tells the digest that was found.
	Digests []Digest
	// Progress, if not nil, is called now and then, by the goroutine that installs.
	Progress func(Progress)
}

// Installed is a package that can be run.
type Installed struct {
	// Executable is the path of the program, Directory of all that came with it.
	Executable, Directory string
	// Content (h1:) and Archive (zh:) are the package's digests; Archive is "" if it came without
	// an archive. Matched is the one that was required.
	Content, Archive, Matched Digest
	// Signature is what the origin's signature said when the package was fetched.
	Signature Signature
	// From is the origin that it was fetched from.
	From string
	// Stored is of a package that was in the store, so that no origin was asked.
	Stored bool
	// Development is of a program that nobody has verified: it has no digests.
	Development bool
}

// Install gives a package that has one of the digests: from the store, if what is there is still
// what it was, else from the origin. It can be called before each use, and repeated. Whatever
// fails leaves nothing in the store.
func (i *Installer) Install(ctx context.Context, request Request) (Installed, error) {
	if err := request.Package.check(); err != nil {
		return Installed{}, err
	}
	for _, d := range request.Digests {
		if _, err := ParseDigest(string(d)); err != nil {
			return Installed{}, err
		}
	}
	late := fmt.Errorf("it took longer than %s", i.limits.Time)
	ctx, cancel := context.WithTimeoutCause(ctx, i.limits.Time, late)
	defer cancel()
	installed, err := i.install(ctx, request, &meter{report: request.Progress})
	if err != nil {
		return Installed{}, fmt.Errorf("installing %s: %w", request.Package, err)
	}
	return installed, nil
}

func (i *Installer) install(ctx context.Context, request Request, progress *meter) (Installed, error) {
	installed, unusable := i.stored(ctx, request, progress)
	if unusable == nil || ctx.Err() != nil {
		return installed, unusable
	}
	found, err := request.Origin.Find(ctx, request.Package)
	if err != nil && !errors.Is(unusable, ErrNotFound) {
		// Not as a refusal: it may well work with another answer of the origin.
		return Installed{}, fmt.Errorf("%w; and what is in the store cannot be used: %v", err, unusable)
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

// stored looks for the package in the store. Any error means that it has to be fetched.
func (i *Installer) stored(ctx context.Context, request Request, progress *meter) (Installed, error) {
	r, ok := i.store.recorded(recordPath(request.Package))
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
	installed := i.ready(c, r, matched)
	installed.Stored = true
	return installed, nil
}

// fetch brings what was found into the stage, judges it, and moves it into the store.
func (i *Installer) fetch(ctx context.Context, st *stage, request Request, found Found, progress *meter) (Installed, error) {
	content, err := st.content()
	if err != nil {
		return Installed{}, err
	}
	defer func() { _ = content.Close() }() // files were closed each
	j := &judgement{request: request, found: found}
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
	matched, err := j.ofContent(c.digest)
	if err != nil {
		return Installed{}, err
	}
	r := record{Content: c.digest, Archive: j.archive, Signature: found.Signature, From: request.Origin.String()}
	if err := i.store.put(ctx, st, c, r, request.Package); err != nil {
		return Installed{}, err
	}
	return i.ready(c, r, matched), nil
}

// content makes the directory into which a package is unpacked.
func (st *stage) content() (*os.Root, error) {
	name := path.Join(st.name, contentName)
	if err := st.store.root.Mkdir(name, ownMode); err != nil {
		return nil, err
	}
	return st.store.root.OpenRoot(name)
}

func (i *Installer) fetchDirectory(ctx context.Context, content *os.Root, j *judgement, progress *meter) error {
	mirror, err := os.OpenRoot(j.found.Root)
	if err != nil {
		return err
	}
	defer func() { _ = mirror.Close() }() // it was only read
	from, err := fs.Sub(mirror.FS(), j.found.Directory)
	if err != nil {
		return err
	}
	return copyPackage(ctx, from, content, j.request.Package.Source.Type, i.limits, progress)
}

// fetchArchive gets an archive of its own first: one that somebody else can write to may change
// between being judged and being unpacked.
func (i *Installer) fetchArchive(ctx context.Context, st *stage, content *os.Root, j *judgement, progress *meter) error {
	file, err := st.store.root.OpenFile(path.Join(st.name, archiveName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it goes with the stage
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
	if _, err := io.Copy(hash, &interruptible{ctx, io.NewSectionReader(file, 0, size)}); err != nil {
		return err
	}
	if err := j.ofArchive(newDigest(archiveScheme, hash.Sum(nil))); err != nil {
		return err
	}
	return unpack(ctx, file, size, content, j.request.Package.Source.Type, i.limits, progress)
}

func copyArchive(ctx context.Context, found Found, into *os.File, limits Limits, progress *meter) error {
	mirror, err := os.OpenRoot(found.Root)
	if err != nil {
		return err
	}
	defer func() { _ = mirror.Close() }() // it was only read
	from, err := mirror.Open(found.Archive)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // it was only read
	info, err := from.Stat()
	if err != nil {
		return err
	}
	progress.start("copy", 0, info.Size())
	n, err := io.Copy(&counting{into, progress}, io.LimitReader(&interruptible{ctx, from}, limits.Archive+1))
	if err == nil && n > limits.Archive {
		err = fmt.Errorf("%w: the archive is larger than the limit of %d bytes", ErrRefused, limits.Archive)
	}
	return err
}

// ready describes a package in the store.
func (i *Installer) ready(c contents, r record, matched Digest) Installed {
	dir := i.store.Directory(c.digest)
	return Installed{
		Executable: filepath.Join(dir, c.program), Directory: dir,
		Content: r.Content, Archive: r.Archive, Matched: matched, Signature: r.Signature, From: r.From,
	}
}

// Develop takes a program as it is, from where it is: what its developer builds anew is run the next
// time. Nothing is verified, so no digest may be asked of it.
func Develop(program string) (Installed, error) {
	if !filepath.IsAbs(program) {
		return Installed{}, fmt.Errorf("%w: the path %q of a program in development is not absolute", ErrInvalid, program)
	}
	info, err := os.Stat(program)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Installed{}, fmt.Errorf("%w: there is no program %s", ErrNotFound, program)
	case err != nil:
		return Installed{}, err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return Installed{}, fmt.Errorf("%w: %s is no program: it is not a file, or not executable (chmod +x)", ErrInvalid, program)
	}
	return Installed{
		Executable: program, Directory: filepath.Dir(program), Development: true,
		Signature: Signature{State: SignatureNone}, From: "development",
	}, nil
}

// judgement holds what was found against the digests that are required, and against what the origin
// says of it.
type judgement struct {
	request Request
	found   Found
	archive Digest // of the archive, if there is one
}

// ofArchive lets an archive be unpacked if it has one of the digests, or if its content can
// still turn out to have one.
func (j *judgement) ofArchive(archive Digest) error {
	j.archive = archive
	open := func(digests []Digest) bool {
		return slices.Contains(digests, archive) || slices.ContainsFunc(digests, Digest.ofContent)
	}
	if !open(j.request.Digests) {
		return &DigestError{Found: []Digest{archive}, Required: j.request.Digests}
	}
	if len(j.found.Claimed) > 0 && !open(j.found.Claimed) {
		return &DigestError{Found: []Digest{archive}, Required: j.found.Claimed, Origin: true}
	}
	return nil
}

// ofContent gives the required digest that the package has.
func (j *judgement) ofContent(content Digest) (Digest, error) {
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

// DigestError is of a package that has none of the digests. It is ErrRefused.
type DigestError struct {
	// Found are the digests that it has: that of the archive, or of the content, or both.
	Found []Digest
	// Required are those of which it should have one.
	Required []Digest
	// Origin tells that the origin itself said so.
	Origin bool
}

func (e *DigestError) Error() string {
	found := string(e.Found[0])
	for _, d := range e.Found[1:] {
		found += ", " + string(d)
	}
	switch {
	case e.Origin:
		return fmt.Sprintf("refused: the package has the digest %s, which is none of those that its origin says it has: it is damaged or was exchanged", found)
	case len(e.Required) == 0:
		return fmt.Sprintf("refused: no digest is required, so that any package would do; this one has %s: require that if you trust it", found)
	}
	return fmt.Sprintf("refused: the package has the digest %s, which is none of the %d that are required; add it to them only if you trust the package",
		found, len(e.Required))
}

// Is tells that it is a refusal.
func (e *DigestError) Is(target error) bool { return target == ErrRefused }
