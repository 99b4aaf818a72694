package mvcc

// Ahead returns the number of pages that are read ahead and not yet requested, their size,
// and the number of reads under way.
func (k *Keyspace) Ahead() (pages int, bytes int64, reading int) {
	k.ahead.mu.Lock()
	defer k.ahead.mu.Unlock()
	return len(k.ahead.pages), k.ahead.bytes, k.ahead.reading
}
