package cli

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// retentionFlags limit the history of a keyspace. Two of them have the names and
// semantics of etcd's flags.
type retentionFlags struct {
	mode, retention string
	maxChanges      int64
}

func (r *retentionFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&r.mode, "auto-compaction-mode", "periodic", "Unit of --auto-compaction-retention: periodic (time) or revision (number of revisions).")
	flags.StringVar(&r.retention, "auto-compaction-retention", "0", "How much history to keep: a duration such as 30m (a plain number is hours), or a number of revisions. 0 leaves compaction to clients.")
	addMaxChangesFlag(flags, &r.maxChanges, 0)
}

func addMaxChangesFlag(flags *pflag.FlagSet, n *int64, fallback int64) {
	flags.Int64Var(n, "history-max-changes", fallback, "Approximate maximum number of changes to keep in the history, whatever its age; the last two minutes are always kept. 0 is no limit.")
}

func (r *retentionFlags) parse() (out mvcc.Retention, err error) {
	if r.maxChanges < 0 {
		return out, fmt.Errorf("--history-max-changes %d is negative: use a positive number, or 0 for no limit", r.maxChanges)
	}
	out.MaxChanges = r.maxChanges
	number, notNumber := strconv.ParseInt(r.retention, 10, 64)
	switch r.mode {
	case "revision":
		if notNumber != nil || number < 0 {
			return out, fmt.Errorf("--auto-compaction-retention %q is not a number of revisions: use a number such as 10000, or --auto-compaction-mode periodic", r.retention)
		}
		out.Revisions = number
	case "periodic":
		if notNumber == nil {
			out.Age = time.Duration(number) * time.Hour
		} else if out.Age, err = time.ParseDuration(r.retention); err != nil {
			return out, fmt.Errorf("--auto-compaction-retention %q is not a duration: use one such as 30m or 12h, or --auto-compaction-mode revision", r.retention)
		}
		if out.Age < 0 || out.Age > 0 && out.Age < time.Second {
			return out, fmt.Errorf("--auto-compaction-retention %q is out of range: must be at least 1s", r.retention)
		}
	default:
		return out, errors.New("invalid --auto-compaction-mode: must be periodic or revision")
	}
	return out, nil
}
