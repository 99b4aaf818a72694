package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/adopt"
)

// Adoption is a state file of OpenTofu that is to be taken over.
type Adoption struct {
	Source io.ReaderAt
	Size   int64
	// Prefix that the names of all objects begin with.
	Prefix string
	// Providers say what stands for providers' configurations where that cannot be told: ADDRESS=PROVIDER or
	// ADDRESS=PROVIDER/CONFIG.
	Providers []string
	// Data takes over data sources, too; Literals recovers no references.
	Data, Literals bool
	// DryRun writes nothing.
	DryRun bool
	// Format of what a dry run shows: "" for people, or yaml.
	Format string
}

// ImportState makes objects of the resources of a state file, with what they need, and has a plan made that shows that there
// is nothing to do. Run again it goes on where it was interrupted.
func (s *Session) ImportState(ctx context.Context, what *Adoption) error {
	file, err := s.survey(ctx, what)
	if err != nil {
		return err
	}
	if !what.DryRun {
		if err := s.nobodyApplies(ctx); err != nil {
			return err
		}
	}
	first := &looker{session: s, file: file, format: what.Format, show: what.DryRun}
	report, err := file.adopt(nil, first.look, nil)
	if err = errors.Join(first.end(), explainedFile(err)); err != nil {
		return err
	}
	if what.DryRun {
		if what.Format == "" {
			s.adopted(report, "would be")
		}
		return nil
	}
	w := newAdopter(ctx, s, file)
	if _, err := file.adopt(nil, w.take, w.progress); err != nil {
		return w.broken(err)
	}
	if err := w.end(); err != nil {
		return w.broken(err)
	}
	s.adopted(report, "were")
	return s.settleAdopted(ctx, file, report)
}

// explainedFile says with which flag to answer what a file leaves open.
func explainedFile(err error) error {
	var missing *adopt.MissingProvidersError
	if errors.As(err, &missing) {
		return fmt.Errorf("%w; say so with --provider, once for each", err)
	}
	return err
}

// adopt goes through the file. What was found out of a plan, by addresses, tells which arguments are to be written, too.
func (f *surveyed) adopt(changes map[string][]string, emit func(*adopt.Adopted) error, progress func(done, total int)) (*adopt.Report, error) {
	options := f.options
	options.Progress = progress
	if changes != nil {
		options.Checker = &replay{changes: changes, told: map[string]bool{}}
	}
	return adopt.Adopt(f.what.Source, f.what.Size, f.kinds, options, emit)
}

// replay is a Checker that knows of a plan that was made what it would change.
type replay struct {
	changes map[string][]string
	told    map[string]bool
}

func (r *replay) Changes(one *adopt.Adopted, _ cty.Value) ([]string, error) {
	if r.told[one.Address] { // the arguments are written now
		return nil, nil
	}
	r.told[one.Address] = true
	return r.changes[one.Address], nil
}

// adopted sums up.
func (s *Session) adopted(r *adopt.Report, were string) {
	s.printf("%s %s taken over into namespace %s. %s recovered", counted(r.Resources+r.DataSources, "resource"), were, s.Namespace, counted(r.References, "reference"))
	if r.DependsOn > 0 {
		s.printf(", %d more in depends_on", r.DependsOn)
	}
	if r.Secrets > 0 {
		s.printf("; %s with what is sensitive", counted(r.Secrets, "Secret"))
	}
	s.printf(".\n")
	if r.SkippedData > 0 {
		s.printf("Left out: %s (--data takes them over, too); what was taken from them is written as it is.\n", counted(r.SkippedData, "data source"))
	}
	if len(r.File.Outputs) > 0 {
		s.printf("Left out: the outputs %s, which have no place in Atoll.\n", shortened(r.File.Outputs))
	}
	if r.OmittedDependencies > 0 {
		s.printf("Of %s no order could be written down: too many instances could be meant.\n", counted(r.OmittedDependencies, "dependency"))
	}
	if len(r.MissingSecrets) > 0 {
		s.printf("No state file has what is only ever written: complete the Secrets of %s.\n", shortened(r.MissingSecrets))
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if stem, is := strings.CutSuffix(what, "cy"); is {
		return fmt.Sprintf("%d %scies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// broken is of an adoption that did not come to its end.
func (w *adopter) broken(err error) error {
	w.stop()
	if first := w.end(); first != nil {
		err = first
	}
	if w.ctx.Err() != nil {
		err = interrupted(w.ctx)
	}
	return fmt.Errorf("%w: %d of %d are taken over; the same command goes on from there", err, w.done.Load(), w.total.Load())
}

// looker looks at all before anything is written: nothing of it may stand in the way of something else.
type looker struct {
	session *Session
	file    *surveyed
	format  string
	show    bool
	out     *tabwriter.Writer
	lines   int
	taken   []string
}

func (l *looker) look(one *adopt.Adopted) error {
	if one.Object == nil {
		return nil
	}
	if is := l.file.there[kindName{one.Object.APIVersion, one.Object.Plural}][one.Object.Name]; is != nil && is.address != one.Address {
		l.taken = append(l.taken, strings.ToLower(one.Object.Kind)+"/"+one.Object.Name)
		return nil
	}
	if !l.show {
		return nil
	}
	if l.format == "yaml" {
		u, err := manifestOf(one, false)
		if err != nil {
			return err
		}
		l.session.printf("---\n")
		return printed(l.session.Out, "yaml", u.Object)
	}
	if l.out == nil {
		l.out = tabwriter.NewWriter(l.session.Out, 6, 4, 3, ' ', 0)
		fmt.Fprintln(l.out, "ADDRESS\tOBJECT\tREFERENCES\tSECRET")
	}
	secret := ""
	if one.Secret != nil {
		keys := len(one.Secret.Data)
		secret = fmt.Sprintf("%s (%s", one.Secret.Name, counted(keys, "key"))
		if missing := len(one.Secret.Missing); missing > 0 {
			secret += fmt.Sprintf(", %d missing", missing)
		}
		secret += ")"
	}
	group, _, _ := strings.Cut(one.Object.APIVersion, "/")
	fmt.Fprintf(l.out, "%s\t%s.%s/%s\t%d\t%s\n", printable(one.Address), strings.ToLower(one.Object.Kind), group, one.Object.Name, one.References, secret)
	if l.lines++; l.lines%pageSize == 0 { // columns are aligned page by page: nothing holds all of a large file
		return l.out.Flush()
	}
	return nil
}

func (l *looker) end() error {
	if l.out != nil {
		if err := l.out.Flush(); err != nil {
			return err
		}
	}
	if len(l.taken) == 0 {
		return nil
	}
	slices.Sort(l.taken)
	return fmt.Errorf("%d objects are there already that were not made of this file: %s: keep the two apart by --prefix, or take over into another namespace",
		len(l.taken), shortened(l.taken))
}
