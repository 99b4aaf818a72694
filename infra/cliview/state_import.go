package cliview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/statefile"
)

// StateImport configures the import of an OpenTofu state file.
type StateImport struct {
	Source io.ReaderAt
	Size   int64
	// Prefix is prepended to the names of all objects.
	Prefix string
	// Providers maps provider configurations that cannot be matched automatically: ADDRESS=PROVIDER or
	// ADDRESS=PROVIDER/CONFIG.
	Providers []string
	// Data also imports data sources. Literals does not recover references.
	Data, Literals bool
	// DryRun writes nothing.
	DryRun bool
	// Format of a dry run's output: "" for text, or yaml.
	Format string
}

// ImportState creates objects, states and Secrets for the resources of a state file, and a plan that shows
// whether anything would change. After an interruption, the same call continues.
func (s *Session) ImportState(ctx context.Context, what *StateImport) error {
	file, err := s.readFile(ctx, what)
	if err != nil {
		return err
	}
	if !what.DryRun {
		if err := s.checkNoAutoPolicy(ctx); err != nil {
			return err
		}
	}
	first := &preflight{session: s, file: file, format: what.Format, show: what.DryRun}
	report, err := file.adopt(nil, first.check, nil)
	if err = errors.Join(first.end(), explainFileError(err)); err != nil {
		return err
	}
	if what.DryRun {
		if what.Format == "" {
			s.printReport(report, "would be")
		}
		return nil
	}
	w := newImporter(ctx, s, file)
	if _, err := file.adopt(nil, w.submit, w.progress); err != nil {
		return w.failed(err)
	}
	if err := w.wait(); err != nil {
		return w.failed(err)
	}
	s.printReport(report, "were")
	return s.completeImport(ctx, file, report)
}

// explainFileError adds the flag that resolves an error of the file.
func explainFileError(err error) error {
	var missing *statefile.MissingProvidersError
	if errors.As(err, &missing) {
		return fmt.Errorf("%w; map each one with --provider", err)
	}
	return err
}

// adopt converts the file. corrections has what a plan says about resources, by address.
func (f *stateFile) adopt(corrections map[string]planned, emit func(*statefile.Adopted) error, progress func(done, total int)) (*statefile.Report, error) {
	options := f.options
	options.Progress = progress
	if corrections != nil {
		options.Checker = &planChecker{of: corrections, reported: map[string]bool{}}
	}
	return statefile.Adopt(f.what.Source, f.what.Size, f.kinds, options, emit)
}

// planChecker is a Checker that uses an existing plan.
type planChecker struct {
	of       map[string]planned
	reported map[string]bool
}

func (r *planChecker) Changes(one *statefile.Adopted, _ cty.Value) ([]string, error) {
	if r.reported[one.Address] { // the arguments are already corrected
		return nil, nil
	}
	r.reported[one.Address] = true
	of := r.of[one.Address]
	if of.problem != "" {
		return nil, errors.New(of.problem)
	}
	return of.changes, nil
}

// printReport summarizes an import.
func (s *Session) printReport(r *statefile.Report, were string) {
	if were == "were" && r.Resources+r.DataSources == 1 {
		were = "was"
	}
	s.printf("%s %s imported into namespace %s. %s recovered", counted(r.Resources+r.DataSources, "resource"), were, s.Namespace, counted(r.References, "reference"))
	if r.DependsOn > 0 {
		s.printf(", %d more in depends_on", r.DependsOn)
	}
	if r.Secrets > 0 {
		s.printf("; %s with sensitive values", counted(r.Secrets, "Secret"))
	}
	s.printf(".\n")
	if r.SkippedData > 0 {
		s.printf("Skipped: %s (use --data to import them); their values are written as literals.\n", counted(r.SkippedData, "data source"))
	}
	if len(r.File.Outputs) > 0 {
		s.printf("Skipped: outputs %s, which Atoll does not support.\n", shortened(r.File.Outputs))
	}
	if r.OmittedDependencies > 0 {
		s.printf("No order recorded for %s: too many instances match.\n", counted(r.OmittedDependencies, "dependency"))
	}
	if len(r.MissingSecrets) > 0 {
		s.printf("State files do not contain write-only values: complete the Secrets of %s.\n", shortened(r.MissingSecrets))
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

// failed returns the error of an incomplete import.
func (w *importer) failed(err error) error {
	w.stop()
	if first := w.wait(); first != nil {
		err = first
	}
	if w.ctx.Err() != nil {
		err = interrupted(w.ctx)
	}
	return fmt.Errorf("%w: %d of %d resources are imported; run the same command to continue", err, w.done.Load(), w.total.Load())
}

// preflight checks everything before anything is written: existing objects must not be in the way.
type preflight struct {
	session   *Session
	file      *stateFile
	format    string
	show      bool
	out       *tabwriter.Writer
	lines     int
	conflicts []string
}

func (l *preflight) check(one *statefile.Adopted) error {
	if one.Object == nil {
		return nil
	}
	if is := l.file.existing[kindName{one.Object.APIVersion, one.Object.Plural}][one.Object.Name]; is != nil && is.address != one.Address {
		l.conflicts = append(l.conflicts, strings.ToLower(one.Object.Kind)+"/"+one.Object.Name)
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
		return writeFormatted(l.session.Out, "yaml", u.Object)
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
	if l.lines++; l.lines%pageSize == 0 { // align columns page by page, to not hold a large file in memory
		return l.out.Flush()
	}
	return nil
}

func (l *preflight) end() error {
	if l.out != nil {
		if err := l.out.Flush(); err != nil {
			return err
		}
	}
	if len(l.conflicts) == 0 {
		return nil
	}
	slices.Sort(l.conflicts)
	return fmt.Errorf("%d objects already exist and were not imported from this file: %s: use --prefix, or import into another namespace",
		len(l.conflicts), shortened(l.conflicts))
}
