package packages

import "time"

// Limits bound the resources of one installation. The largest published provider has an archive of
// 200 MB and a file of 1 GB.
type Limits struct {
	// Archive is the maximum size of an archive, in bytes. Default: 1 GiB.
	Archive int64
	// Files is the maximum number of files. Default: 1,000.
	Files int
	// File and Total are the maximum sizes of one unpacked file and of all. Defaults: 2 GiB and 4
	// GiB.
	File, Total int64
	// Ratio is the maximum ratio of the unpacked size to the archive's. Default: 100. Typical
	// programs compress to a fifth.
	Ratio int64
	// Time is the maximum duration of an installation. Default: 30 minutes.
	Time time.Duration
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Archive, 1<<30)
	setDefault(&l.Files, 1000)
	setDefault(&l.File, 2<<30)
	setDefault(&l.Total, 4<<30)
	setDefault(&l.Ratio, 100)
	setDefault(&l.Time, 30*time.Minute)
	return l
}

func setDefault[T int | int64 | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}
