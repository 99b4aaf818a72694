package cli

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// retentionFlags bound the history of a keyspace. Two have the names and the
// meaning of etcd's.
type retentionFlags struct {
	mode, retention string
	maxChanges      int64
}

func (r *retentionFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&r.mode, "auto-compaction-mode", "periodic", "What --auto-compaction-retention counts: periodic for time, revision for revisions.")
	flags.StringVar(&r.retention, "auto-compaction-retention", "0", "How much history to keep: a time such as 30m (a number alone is hours), or how many revisions. 0 leaves compaction to clients.")
	addMaxChangesFlag(flags, &r.maxChanges, 0)
}

func addMaxChangesFlag(flags *pflag.FlagSet, n *int64, fallback int64) {
	flags.Int64Var(n, "history-max-changes", fallback, "Keep at most about so many changes of history, whatever its age, but always the last two minutes; 0 for no bound.")
}

func (r *retentionFlags) parse() (out mvcc.Retention, err error) {
	if r.maxChanges < 0 {
		return out, fmt.Errorf("--history-max-changes %d: give a number from 1 on, or 0 for no bound", r.maxChanges)
	}
	out.MaxChanges = r.maxChanges
	number, notNumber := strconv.ParseInt(r.retention, 10, 64)
	switch r.mode {
	case "revision":
		if notNumber != nil || number < 0 {
			return out, fmt.Errorf("--auto-compaction-retention %q is no number of revisions: give one such as 10000, or --auto-compaction-mode periodic", r.retention)
		}
		out.Revisions = number
	case "periodic":
		if notNumber == nil {
			out.Age = time.Duration(number) * time.Hour
		} else if out.Age, err = time.ParseDuration(r.retention); err != nil {
			return out, fmt.Errorf("--auto-compaction-retention %q is no time: give one such as 30m or 12h, or --auto-compaction-mode revision", r.retention)
		}
		if out.Age < 0 || out.Age > 0 && out.Age < time.Second {
			return out, fmt.Errorf("--auto-compaction-retention %q is out of range: give at least 1s", r.retention)
		}
	default:
		return out, errors.New("--auto-compaction-mode is periodic or revision")
	}
	return out, nil
}
