#!/bin/sh
# report.sh makes a report once per hour, on one of many machines. Cron starts it on each, every five minutes, since a
# later start makes a report that has failed:
#
#	*/5 * * * *  NATS_URL=nats://10.0.0.5 /usr/local/bin/report.sh /srv/reports
#
# A start that finds the report made, or being made, ends with 0 and says nothing.
#
#	go build -o /tmp/lockctl ./cmd/lockctl && PATH=/tmp:$PATH && mkdir -p /tmp/reports
#	lockctl server & sleep 1   # on servers of your own: lockctl init
#	(for i in 1 2 3; do ./examples/shell/report.sh /tmp/reports & done; wait)
set -eu

case ${LOCK_NAME-} in
report) ;;
report.*) # The report of the last hour may still be at work: then this one waits.
	exec lockctl run report -- "$0" "$@" ;;
*) # Once per hour. 2h is longer than clocks differ.
	export HOUR="${HOUR:-$(date -u +%Y%m%dT%H)}"
	exec lockctl run --keep 2h -E 0 "report.$HOUR" -- "$0" "$@" ;;
esac

# Here is the report. It is the only one at work, unless its machine was suspended. Such a
# report has a smaller token in its name, and readers take the last name of an hour.
name=report.$HOUR.$(printf %020d "$LOCK_TOKEN")
uptime >"$1/.$name"
mv "$1/.$name" "$1/$name"
