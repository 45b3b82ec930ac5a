# One line of the log: TIME METHOD PATH STATUS MILLISECONDS
# 2026-03-01T08:00:00Z GET /api/items 200 12
#
# Lines of any other shape are counted as malformed and otherwise ignored: a
# log is written by programs that crash.

NF == 5 && $4 ~ /^[1-5][0-9][0-9]$/ && $5 ~ /^[0-9]+$/ {
	requests++
	by_class[substr($4, 1, 1) "xx"]++
	by_path[$3]++
	path_ms[$3] += $5
	ms[requests] = $5 + 0
	next
}
NF > 0 { malformed++ }

END {
	if (requests == 0) {
		print "logreport: no valid line in the log" > "/dev/stderr"
		exit 1
	}
	sort_numbers(ms, requests)
	count = rank_paths()
	if (format == "json") print_json(count)
	else print_text(count)
}

# Shell sort: short, no worst case that matters for a report.
function sort_numbers(a, n,    gap, i, j, v) {
	for (gap = int(n / 2); gap > 0; gap = int(gap / 2))
		for (i = gap + 1; i <= n; i++) {
			v = a[i]
			for (j = i; j > gap && a[j - gap] > v; j -= gap) a[j] = a[j - gap]
			a[j] = v
		}
}

# The smallest value that at least p percent of all values do not exceed.
function percentile(p,    k) {
	k = int((p * requests + 99) / 100)
	return ms[k < 1 ? 1 : k]
}

# Fills ranked[1..]: most requests first, ties by name.
function rank_paths(    path, n, i) {
	n = 0
	for (path in by_path) {
		for (i = n; i >= 1 && before(path, ranked[i]); i--) ranked[i + 1] = ranked[i]
		ranked[i + 1] = path
		n++
	}
	return n < top ? n : top
}

function before(a, b) {
	if (by_path[a] != by_path[b]) return by_path[a] > by_path[b]
	return a < b
}

function print_text(count,    i, c) {
	printf "requests   %d (%d malformed)\n", requests, malformed
	printf "latency    p50 %d ms  p95 %d ms  max %d ms\n", percentile(50), percentile(95), ms[requests]
	for (c = 1; c <= 5; c++)
		if (by_class[c "xx"]) printf "status     %dxx %d (%.1f%%)\n", c, by_class[c "xx"], 100 * by_class[c "xx"] / requests
	for (i = 1; i <= count; i++)
		printf "path       %-20s %5d  mean %.1f ms\n", ranked[i], by_path[ranked[i]], path_ms[ranked[i]] / by_path[ranked[i]]
}

function print_json(count,    i, c, sep) {
	printf "{\"requests\":%d,\"malformed\":%d,", requests, malformed
	printf "\"latency_ms\":{\"p50\":%d,\"p95\":%d,\"max\":%d},\"status\":{", percentile(50), percentile(95), ms[requests]
	for (c = 1; c <= 5; c++)
		if (by_class[c "xx"]) {
			printf "%s\"%dxx\":%d", sep, c, by_class[c "xx"]
			sep = ","
		}
	printf "},\"paths\":["
	for (i = 1; i <= count; i++)
		printf "%s{\"path\":\"%s\",\"requests\":%d}", (i > 1 ? "," : ""), escape(ranked[i]), by_path[ranked[i]]
	print "]}"
}

# Quotes and backslashes are all that can break a JSON string here: fields
# hold no white space, and control characters are dropped.
function escape(s) {
	gsub(/[\001-\037]/, "", s)
	gsub(/[\\"]/, "\\\\&", s)
	return s
}
